// Sphinx's own numbers, and a heading that is what was searched for before any page with its words.
var Scorer = {
  score: ([, , , , score, , kind]) => score + (kind === "title" ? 1000 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
