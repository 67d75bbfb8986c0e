r"""
Why this token rather than that
===============================

Attribution says what the choice of an induction head rests on.

A model of two layers learns to continue texts that repeat. Its second layer then has an induction head: the query, a
token seen before, attends to the token that followed it there. Contrastive attribution says what this rests on. On the
side of the keys these are heads of the first layer that told each token its previous token. On the side of the query
it is the embedding.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from attsvm.pretrained import attribute

rng = np.random.default_rng(0)
torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
model = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=40, max_position_embeddings=64, **sizes))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95), weight_decay=0.01)
for _ in range(250):
    ids = rng.integers(0, 40, size=(48, 32))
    for row in ids:
        start, period = rng.integers(0, 6), rng.integers(8, 14)
        row[start + period :] = np.resize(row[start : start + period], 32 - start - period)
    ids = torch.from_numpy(ids)
    logits = model(input_ids=ids).logits[:, 15:-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 16:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.2f}, of a guess {np.log(40):.2f}")

# Twelve words, twice: token 17 is the word of token 5, and token 6 follows token 5.
text = {"input_ids": torch.from_numpy(rng.permutation(40)[:12]).repeat(2)[None]}
splits = [attribute(model, 1, head, text, query=17, chosen=6, rival=8) for head in range(4)]
split = max(splits, key=lambda one: one.margin)
print(split)
print(split.check("query").sentence)
print(split.check("keys").sentence)

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
split.plot("keys", left)
split.plot("query", right)
left.set_title("keys: token 6 rather than token 8")
right.set_title("query: token 17")
