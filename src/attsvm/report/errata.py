"""What does not hold as stated in the papers, their code or their summaries, each with a command that shows it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Erratum:
    """One statement that does not hold.

    Attributes
    ----------
    title : str
    where : str
        The source: "v1" is version 1 of arXiv 2308.16898, "code" the official code.
    printed, holds : str
        What is stated there; what is true instead.
    command : str
        Shows it.
    shows : str
        What of the command's output to look at.
    """

    title: str
    where: str
    printed: str
    holds: str
    command: str
    shows: str


def _python(code: str) -> str:
    return f"python -c {shlex.quote(code)}"


ERRATA = (
    Erratum(
        "Global convergence from any start",
        "v1, Thms 4, 5",
        "Gradient descent reaches the SVM of the optimal tokens from any W(0), for any number n of sequences, when the "
        "non-optimal tokens score (nearly) the same.",
        "False for n ≥ 2, true for n = 1. Two sequences of two tokens in the plane refute it: started at 4 e₁e₁ᵀ, "
        "descent keeps to a local direction for ever, at a correlation that tends to 1/√10 = 0.32.",
        "python -m pytest tests/unit/test_theory_counterexample.py",
        "The hypotheses hold, two directions are locally optimal, and descent ends in either (docs/counterexample.md).",
    ),
    Erratum(
        "The step size of the descent inequality",
        "v1, proof of Thm 3",
        "L(W(k+1)) − L(W(k)) ≤ −η/2 ‖∇L‖² for η ≤ 2/L_W.",
        "Smoothness gives that for η ≤ 1/L_W only. At 2/L_W it gives no decrease at all, as a parabola shows.",
        _python(
            "L, x = 1.0, 1.0; eta, slope = 2 / L, L * x; print(L * (x - eta * slope)**2 / 2 - L * x**2 / 2, "
            "-eta * slope**2 / 2)"
        ),
        "The change is 0.0; at most −1.0 is claimed.",
    ),
    Erratum(
        "The Lipschitz constant of the gradient in K",
        "v1, Lemma 4",
        "L_K = ‖Q‖ L_W and L_Q = ‖K‖ L_W.",
        "The gradient in K is ∇L(KQᵀ) Q, and Q enters it twice: L_K = ‖Q‖² L_W, L_Q = ‖K‖² L_W. At Q = 10⁴ I finite "
        "differences see twenty times what the first power allows.",
        "python -m pytest tests/unit/test_theory_conditions.py::"
        "test_the_published_constant_of_k_is_too_small_for_large_q",
        "The measured constant exceeds the published bound and not the corrected one.",
    ),
    Erratum(
        "The rank that every solution keeps to",
        "v1, Lemma 1",
        "rank W ≤ max(n, d).",
        "A slip: no d × d matrix has a higher rank than d, so that says nothing. What the proof gives is min(n, d).",
        _python(
            "import numpy as np; from attsvm import SelectionProblem, solve; r = np.random.default_rng(0); "
            "print([int(np.linalg.matrix_rank(solve(SelectionProblem(r.normal(size=(n, 5, d)), "
            "r.normal(size=(n, d)), np.zeros(n, int)), norm).W, tol=1e-6)) for n, d in ((2, 10), (4, 20)) "
            'for norm in ("frobenius", "nuclear")])'
        ),
        "Ranks 2 and 1 at n = 2, d = 10, then 4 and 2 at n = 4, d = 20: Frobenius min(n, d), nuclear less.",
    ),
    Erratum(
        "Infeasible instances with a rank",
        "Fig. 4, code",
        "Mean rank 1 of the SVM solution at n = 15, T = 5, d ≤ 3, and 2.2 at d = 4.",
        "Those instances have no solution, with a proof for each; the code handed the solver's empty answer to a rank "
        "function that says 1. At d = 4 most of the 100 trials are infeasible, and the mean is mostly theirs.",
        "attsvm reproduce svm-rank",
        "The share certified infeasible, and the mean rank over the others alone.",
    ),
    Erratum(
        "Nuclear ranks that count solver noise",
        "Fig. 4, code",
        "The nuclear solution has mean rank 13.7 at n = 15, T = 5, d = 15, and 4.9 at n = T = 5, d = 10.",
        "Singular values above 10⁻⁷ were counted in solutions accurate to about 10⁻⁵. At certified accuracy the ranks "
        "are a fraction of those: the bias towards low rank is much stronger than published.",
        "attsvm reproduce svm-rank",
        "Ranks of solutions with a certified gap of 10⁻¹², beside the published curve.",
    ),
    Erratum(
        "Assumption B.1 as it is tested",
        "Figs 2 and 5",
        "All non-optimal tokens are support tokens in 70 % of instances at d = 10 and in all from d = 20 on.",
        "The test asks for an average margin of at most 1.1. That every margin is one, which is what B.1 says, holds "
        "in no instance at d = 5, in hardly any at d = 20, and in about a quarter at d = 40.",
        "attsvm reproduce convergence-types",
        "Average margin at most 1.1 beside every margin equal to 1.",
    ),
    Erratum(
        "Runs that are not local",
        "Figs 2 and 5",
        "At d = 2, 63 % of the runs of W and 24 % of those of (K, Q) end at no locally optimal direction.",
        "They had not ended. The shares are those of runs whose attention is not yet saturated after 1000 steps; "
        "trained on, nearly all become locally optimal, as theory says they must.",
        "attsvm reproduce convergence-types",
        "Exact runs trained on, beside the published arithmetic with its stopping rule.",
    ),
    Erratum(
        "Saturated gradients",
        "code",
        "Softmax backward by automatic differentiation: s(γ − s·γ) for each token.",
        "The subtraction cancels once a margin passes −log ε = 36.7 in float64: the selected token's gradient is "
        "rounding error or exactly zero, normalisation blows that up, and ‖W‖ stalls. In the form "
        "sₜ Σ s_τ (γₜ − γ_τ) nothing cancels.",
        _python(
            "import torch; a = torch.tensor([0.0, 1.0, 38.0], dtype=torch.float64, requires_grad=True); "
            "(torch.softmax(a, 0) @ torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)).backward(); "
            "print(a.grad[:2].sum().item(), a.grad[2].item())"
        ),
        "The entries of a softmax gradient sum to zero; the last one is three times too large.",
    ),
    Erratum(
        "What saturation does to the published runs",
        "Fig. 7, code",
        "The figure ends after 2000 iterations, at correlations of 0.9935 (W) and 0.997 (K, Q) with the SVM.",
        "In the published arithmetic there is nothing after that: continued to 10,000 steps, W falls back and (K, Q) "
        "stands still, both some 0.003 to 0.007 away. Exact training is then within 0.0002.",
        "attsvm reproduce local-convergence",
        "1 − correlation at step 10,000 in exact and in published arithmetic.",
    ),
    Erratum(
        "A score gap that goes unsaid",
        "Fig. 6",
        "The probability of global convergence, without a word on how close the second-best score may be.",
        "The published shares come out when instances are redrawn until the best score leads by 0.1, as for Fig. 2. "
        "Without that they are much lower where n or T is large: a token that trails by little is one that a direction "
        "may prefer.",
        "attsvm reproduce global-probability",
        "The rows without a score gap, beside those with it.",
    ),
    Erratum(
        "The draws that Figs 8 and 11 leave out",
        "Figs 8 and 11",
        "Means over 500 trials of a ReLU head at d = 4, 6, 8 and 10.",
        "They are means over the draws whose attention ends decided, a small part of all: a quarter at d = 4, "
        "one or two in a hundred at d = 10. Most accepted draws hold a query in the flat part of the ReLU, which exact "
        "training lets drift and published arithmetic freezes.",
        "attsvm reproduce multi-token",
        "The share of draws accepted at each d, and the means without queries that have no gradient.",
    ),
    Erratum(
        "More tokens than Lemma 6 allows",
        "Fig. 9",
        "At λ = 1.4 a head keeps 8.4 of 10 tokens on average, at λ = 2 it keeps 9.8.",
        "Lemma 6 says which tokens stay, sparsemax of γ/(2λ), and their mean number over the same random scores is "
        "lower from λ = 1.2 on. Training to the end agrees with the lemma.",
        "attsvm reproduce lambda-head",
        "The rows of what Lemma 6 keeps, which train nothing, beside the published counts.",
    ),
    Erratum(
        "K and Q normalised one by one",
        "code",
        "Each of ∇K and ∇Q is divided by its own norm.",
        "That is steepest descent in no fixed norm. It settles near the nuclear SVM, not at it; dividing both by their "
        "joint norm reaches it.",
        "python -m pytest tests/reference/test_limit_directions.py::"
        "test_factors_go_to_the_nuclear_solution_jointly_and_not_separately",
        "1 − correlation with the nuclear solution after the same number of steps.",
    ),
    Erratum(
        "Two coefficients for W^SVMeq",
        "paper and code",
        "The paper takes the multiple of W^mm with the largest correlation, the code the one of least squares.",
        "In the Frobenius norm they are one number (proved: W^fin is orthogonal to W^mm, and W meets the equations of "
        "W^fin). In the nuclear norm they are two.",
        "python -m pytest tests/unit/test_equivalence.py::"
        "test_both_coefficients_are_one_number_in_the_frobenius_norm_and_two_in_the_nuclear",
        "Equal to seven digits in the one norm, apart by more than 10⁻⁴ in the other.",
    ),
    Erratum(
        "Condition D as the reason for global convergence",
        "v1, overparameterisation",
        "If every other selection has an optimal token among its neighbours, descent is expected to be global.",
        "The condition is much stronger than what it is there for. At d = 4 it holds in none of 100 random instances, "
        "and yet in 37 of them there is a single locally optimal selection, the optimal one.",
        _python(
            "from attsvm import theory; from attsvm.data.synthetic import random_data; data, v = "
            "random_data(100, 3, 4, 4, gap=0.1, seed=0); trials = [theory.Trial.of(data[j], v[j]) for j in "
            "range(100)]; seen = [theory.explore(t) for t in trials]; print(sum(theory.check_conditions(t, "
            'landscape=l)["D"].holds is True for t, l in zip(trials, seen)), sum(len(l.directions) == 1 for '
            "l in seen))"
        ),
        "Instances in which D holds, and instances with a single locally optimal selection, of 100.",
    ),
)
