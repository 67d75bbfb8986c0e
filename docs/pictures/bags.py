"""Draw held-out bags of digits with the digit that attention selects: python docs/pictures/bags.py (half a minute)."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from attsvm import AttentionClassifier
from attsvm.data.digits import bags_of_digits

TRAIN, ROWS, SIDE = 300, 8, 8

data = bags_of_digits(400)
bags, y = list(data.tokens.tokens), data.tokens.labels
model = AttentionClassifier(cv=3, decay=1e-3).fit(bags[:TRAIN], y[:TRAIN])
shown, labels = bags[TRAIN : TRAIN + ROWS], y[TRAIN : TRAIN + ROWS]
selected = [int(np.argmax(weights)) for weights in model.transform(shown)]
names = {1.0: "three", -1.0: "eight"}

figure, panels = plt.subplots(2, ROWS // 2, figsize=(8.4, 4.6), layout="constrained")
for panel, bag, which, label, found in zip(panels.flat, shown, selected, labels, model.predict(shown), strict=True):
    pixels = bag[:, : SIDE * SIDE].reshape(3, 3, SIDE, SIDE)
    panel.imshow(np.block([[np.pad(image, 1) for image in row] for row in pixels]), cmap="gray_r")
    row, column = divmod(which, 3)
    corner = (column * (SIDE + 2) - 0.5, row * (SIDE + 2) - 0.5)
    panel.add_patch(Rectangle(corner, SIDE + 2, SIDE + 2, fill=False, edgecolor="#c2410c", linewidth=2.5))
    panel.set_title(f"{names[float(found)]} ({'right' if found == label else 'wrong'})", fontsize=11)
    panel.set_axis_off()
figure.savefig(Path(__file__).with_suffix(".png"), dpi=110, facecolor="white", metadata={"Software": None})
means = np.array([bag.mean(axis=0) for bag in bags])
baseline = make_pipeline(
    StandardScaler(), LogisticRegressionCV(use_legacy_attributes=False, l1_ratios=(0,), scoring="accuracy")
)
baseline.fit(means[:TRAIN], y[:TRAIN])
print(f"of {len(y) - TRAIN} held-out bags: attention right on {model.score(bags[TRAIN:], y[TRAIN:]):.0%},", end=" ")
print(f"logistic regression of the mean digit on {baseline.score(means[TRAIN:], y[TRAIN:]):.0%}")
