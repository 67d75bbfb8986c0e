// The sentence under the picture: the outcome of training so far, and the theory's explanation.

const VISIBLE_LOSS = 1e-3; // the smallest loss of correlation that is visible in the picture
const ALL_ATTENTION = 0.99; // attention on a token above which its sequence selects it
const SELECTED_SHARE = 1e-3; // attention above which a token belongs to a mixture

const listed = (parts) => (parts.length === 1 ? parts[0] : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`);
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const sequencesOf = (indices) => `sequence${indices.length > 1 ? "s" : ""} ${listed(indices.map((i) => i + 1))}`;
const tokensOf = (selected) => listed(selected.map((t, i) => `token ${t + 1} of sequence ${i + 1}`));
const whole = (share) => `${Math.round(100 * share)}%`;
const degrees = (cosine) => `${Number(((Math.acos(Math.max(-1, Math.min(1, cosine))) * 180) / Math.PI).toPrecision(2))}°`;
const angle = (run, what = "the max-margin direction") => (run.correlation === null ? "" : ` W is ${degrees(run.correlation)} from ${what}.`);
const same = (one, other) => one.every((entry, k) => entry === other[k]);

// Word, tone and sentence about a plane. Tones: "global" and "local" optimum, "good", "unsure", "bad".
function planeVerdict(state, picture) {
  const { W: run, exact } = picture.runs;
  let [tone, word, sentence] = state.head === "relu" ? composition(picture, run) : selection(picture, run);
  if (exact) {
    const loss = precisionLoss(run, exact);
    if (loss) [tone, word, sentence] = ["bad", "Direction lost", loss];
    else sentence += " Nothing is lost yet.";
  }
  if (run.ended !== null) sentence += ` Training ended at step ${run.ended}: W left the range of numbers.`;
  return { tone, word, sentence };
}

function selection({ scores, best, step }, run) {
  const ends = run.attention.map(firstLargest);
  const shared = run.attention.flatMap((row, i) => (Math.max(...row) < ALL_ATTENTION ? [i] : []));
  const after = step ? `After ${step} step${step === 1 ? "" : "s"}` : "Before the first step";
  if (run.status === "INFEASIBLE") {
    const instead = shared.length ? `${after} ${sequencesOf(shared)} share${shared.length === 1 ? "s" : ""} attention.` : `Training ends on ${tokensOf(ends)}.`;
    return ["bad", "Infeasible", `${contradiction(run)} ${instead}`];
  }
  if (run.status !== "OPTIMAL") return ["unsure", "Undecided", "The page found no W with a gap below 1e-9, and no proof that there is none."];
  const onTarget = same(ends, run.kept);
  if (shared.length) {
    const least = Math.min(...shared.map((i) => run.attention[i][run.kept[i]]));
    return ["unsure", "Under way", `${after} ${sequencesOf(shared)} still share${shared.length === 1 ? "s" : ""} attention: ${whole(least)} on the selected token.${angle(run)}`];
  }
  if (!onTarget) return ["unsure", "Elsewhere", `Training ends on other tokens than those the SVM selects: on ${tokensOf(ends)}.${angle(run)}`];
  if (same(run.kept, best)) return ["global", "Globally optimal", `Every sequence selects its best-scoring token.${angle(run)}`];
  return locality(scores, best, run);
}

// A support token that scores no less than the selected one ends local optimality.
function violation(scores, kept, support) {
  for (const [i, row] of support.entries()) {
    const noise = 8 * ROUNDING * Math.max(...scores[i].map(Math.abs));
    const t = row.findIndex((near, at) => near && scores[i][at] >= scores[i][kept[i]] - noise);
    if (t >= 0) return [i, t];
  }
  return null;
}

function locality(scores, best, run) {
  const found = violation(scores, run.kept, run.support);
  if (found) {
    const [i, t] = found;
    return ["bad", "Not locally optimal", `In sequence ${i + 1} token ${t + 1} is at margin one and scores no less than the selected token ${run.kept[i] + 1}: longer training may leave it.${angle(run)}`];
  }
  const reasons = run.kept.flatMap((own, i) => (own === best[i] ? [] : [reason(i, own, best[i], run.support[i])]));
  return ["local", "Locally optimal", `${capital(reasons.join("; "))}.${angle(run)}`];
}

function reason(i, own, best, support) {
  const keeps = `sequence ${i + 1} selects token ${own + 1} although token ${best + 1} scores higher, because`;
  const near = support.flatMap((is, t) => (is ? [t + 1] : []));
  if (!near.length) return `${keeps} none of its other tokens is at margin one: none is near enough to pull`;
  if (near.length === 1) return `${keeps} only token ${near[0]} is at margin one, and it scores lower`;
  return `${keeps} only tokens ${listed(near)} are at margin one, and they score lower`;
}

// Why no W selects the tokens: the sequences that the proof's multipliers name.
function contradiction(run) {
  const most = Math.max(...run.proof);
  const rows = run.proof.flatMap((weight, i) => (weight > 1e-9 * most ? [i] : []));
  if (rows.length === 1) {
    return `No W selects token ${run.kept[rows[0]] + 1} of sequence ${rows[0] + 1}: it lies inside the hull of the others, so whatever the direction, one of them gets as much attention or more (Farkas multipliers prove it).`;
  }
  return `No single W selects ${tokensOf(run.kept)}: what ${sequencesOf(rows)} ask for adds up to 0 ≥ 1 (Farkas multipliers prove it).`;
}

// The sets of tokens that a head that is not linear selects.
function composition({ step }, run) {
  if (!step) return ["unsure", "Under way", "Training has not begun: every token has the same attention."];
  if (run.status === "INFEASIBLE") return ["unsure", "Under way", "No matrix ties the tokens that hold attention now and separates the others."];
  if (run.stationary) {
    return ["unsure", "At rest", "The output lies where the head is flat: the gradient is zero, training has ended, and the tokens keep the attention they had there."];
  }
  if (run.selected.every((row) => row.every(Boolean))) return ["unsure", "Under way", "Every token still holds attention; there is nothing to separate yet."];
  const sets = run.selected.map((row) => row.flatMap((is, t) => (is ? [t] : [])));
  const parts = sets.map((set, i) => (set.length > 1
    ? `sequence ${i + 1} mixes tokens ${listed(set.map((t) => t + 1))} (${listed(set.map((t) => whole(run.attention[i][t])))})`
    : `sequence ${i + 1} selects token ${set[0] + 1}`));
  const word = sets.some((set) => set.length > 1) ? "Composition" : "Selection";
  return ["good", word, `${capital(listed(parts))}: W approaches a finite part, which sets the shares, plus the SVM that ties the selected tokens.${angle(run, "that SVM equivalent")}`];
}

function precisionLoss(run, exact) {
  if (!same(run.kept, exact.kept)) return `In single precision training ends on ${tokensOf(run.kept)}, exactly on ${tokensOf(exact.kept)}.`;
  if (!(exact.correlation - run.correlation > VISIBLE_LOSS)) return "";
  return `Plain float32 ends ${degrees(run.correlation)} from the max-margin direction: softmax is saturated and its gradient is rounding. Exact gradients end ${degrees(exact.correlation)} from it.`;
}

// Three classes: whether each optimiser is nearest to the largest margin of its own norm.
function classesVerdict(races) {
  if (races.some((race) => race.objective === null)) {
    return { tone: "bad", word: "Infeasible", sentence: "No linear classifier separates the three classes, so no norm has a largest margin: Farkas multipliers prove it. Drag the stray point back to its class." };
  }
  const least = Math.min(...races.map((race) => race.shares[race.norm]));
  if (!(least > 0)) return { tone: "unsure", word: "Under way", sentence: "Some training does not separate the classes yet." };
  const own = races.every((race) => Object.values(race.shares).every((share) => share <= race.shares[race.norm]));
  const sentence = own
    ? "The same data, three limits: each optimiser comes nearest to the largest margin of its own norm"
    : "Training has not told the norms apart yet; more steps, or points further apart, will";
  return { tone: least > 0.98 ? "good" : "unsure", word: "One norm each", sentence: `${sentence} (${(100 * least).toFixed(1)}% of it or more).` };
}
