// A Python script of public calls that prints the numbers of the page, from attsvm's certified solvers.

const python = (value) => JSON.stringify(value);

function planeScript(state) {
  const relu = state.head === "relu";
  const steps = stepOf(state);
  const numerics = state.numerics === "float32" ? ', numerics="autograd", dtype="float32"' : "";
  const [z] = state.queries;
  const init = state.start ? `, init=np.outer(${python(state.start)}, ${python(z)}) / ${z.reduce((sum, one) => sum + one * one, 0)}` : "";
  const norm = relu ? '"frobenius"' : python(state.norm);
  const factors = state.start ? "" : `KQ = train(data, head, parameterization="KQ", optimizer="${state.optimizer === "gd" ? "gd" : "normalized_gd"}", steps=${steps}${numerics})\n`;
  const runs = state.start ? `(("W", W, ${norm}),)` : `(("W", W, ${norm}), ("K Q^T", KQ, "nuclear"))`;
  const keeps = { trained: "trace.selected", best: "np.argmax(data.labels[:, None] * (tokens @ head), axis=1)" };
  const selected = Array.isArray(state.keep) ? `np.array(${python(state.keep)})` : keeps[state.keep];
  return `import numpy as np
from attsvm import SelectionProblem, TokenData, correlation, solve, train
${relu ? "from attsvm import svm_equivalent\nfrom attsvm.nn.heads import ReLUHead\n" : ""}
tokens = np.array(${python(state.tokens)}, dtype=float)
queries = np.array(${python(state.queries)}, dtype=float)
data = TokenData(tokens, queries, labels=np.array(${python(state.labels)}, dtype=float))
head = ${relu ? `ReLUHead(np.eye(2), ${python(state.v)})` : `np.array(${python(state.v)}, dtype=float)`}

W = train(data, head, optimizer="${state.optimizer}", steps=${steps}${init}${numerics})
${factors}
for name, trace, norm in ${runs}:
${relu ? EQUIVALENT_LINES : SOLVE_LINES.replace("{selected}", selected)}`;
}

const SOLVE_LINES = `    selected = {selected}
    solution = solve(SelectionProblem(tokens, queries, selected), norm)
    print(name, "selects tokens", [int(token) + 1 for token in selected], "of sequences 1, 2, ...")
    print("  loss", float(trace.loss[-1]))
    print("  SVM", solution.status.name, "norm", solution.objective, "gap", solution.gap)
    if np.isfinite(solution.objective):
        print("  correlation", float(correlation(np.asarray(trace.W[-1], dtype=float), solution.W)))
`;

const EQUIVALENT_LINES = `    W_end = np.asarray(trace.W[-1], dtype=float)
    if not W_end.any():
        print(name, "stays at zero: the head is flat there")
        continue
    logits = np.einsum("ntd,de,ne->nt", tokens, W_end, queries)
    attention = np.exp(logits - logits.max(1, keepdims=True))
    attention /= attention.sum(1, keepdims=True)
    gen_svm = svm_equivalent(data, attention, W_end, norm, masked_below=${SELECTED_SHARE})
    print(name, gen_svm.status.name, "selects", gen_svm.selected.tolist())
    print("  loss", float(trace.loss[-1]))
    if gen_svm.solution is not None:
        print("  SVM", gen_svm.solution.status.name, "norm", gen_svm.solution.objective, "gap", gen_svm.solution.gap)
    print("  correlation", gen_svm.correlation)
`;

function classesScript(state) {
  return `import numpy as np
from attsvm import SelectionProblem, TokenData, margin_report, solve, train

points = np.array(${python(state.points)}, dtype=float)
classes = np.array(${python(state.classes)})
inputs = np.column_stack([points, np.ones(len(points))])
problem = SelectionProblem.from_classes(inputs, classes, classes=${CLASS_COUNT})
tokens = np.broadcast_to(np.eye(${CLASS_COUNT}), (len(points), ${CLASS_COUNT}, ${CLASS_COUNT}))
values = (np.arange(${CLASS_COUNT}) == classes[:, None]).astype(float)[..., None]
data = TokenData(tokens, inputs, np.ones(len(points)), values=values)

for optimizer, norm in ${python(RACES)}:
    trace = train(data, [1.0], loss="correlation", optimizer=optimizer, steps=${stepOf(state)})
    solution = solve(problem, norm)
    print(optimizer, "with the", norm, "norm")
    print("  SVM", solution.status.name, "norm", solution.objective, "gap", solution.gap)
    if np.isfinite(solution.objective):
        print("  share of the largest margin", margin_report(trace.W[-1], problem, norms=[norm])[norm].share)
`;
}

const scriptOf = (state) => (state.scene === "classes" ? classesScript : planeScript)(state);
