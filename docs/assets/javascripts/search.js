// What people type or paste, as words for Material's search worker: the build of the site puts this
// in front of it (tools/site/theme.py). The text in the field stays as it is.
/* global lunr */

let questions = null;
let carriesNothing = null;
let said = null;

// The lists of tools/site/searched.yml, from the index.
self.lists = (words) => {
  questions = new RegExp(words.phrases, "g");
  carriesNothing = new Set(words.leftOut);
  said = words.said.map(([typed, found]) => [new RegExp(typed), found.split(" ")]);
};

// index: lunr's, by word.
self.words = (query, index) => {
  const text = query.toLowerCase().replace(/[~^*"\\]|(?<![\w+])\++/g, " "); // operators of lunr
  // An exit code says more than its line.
  const codes = new Set(Array.from(text.matchAll(/(?<!\w)-(\d+)/g), ([, code]) => code));
  let parts = split(text.replace(questions, " "), index).filter(
    (part) => !carriesNothing.has(part) && lunr.stopWordFilter(part),
  );
  if (parts.length === 0) parts = split(text, index); // nothing else was typed
  // The worker looks for every word that begins with a part: for ancdata by an. With ^1 lunr looks
  // for the part alone: what was pasted is whole, but the last word that was typed may be half.
  const pasted = query.length > 40;
  const found = parts.map((part, place) => {
    const short = /^[a-z]{1,3}$/.test(part) && place < parts.length - 1;
    const character = /^\p{sc=Han}$/u.test(part) && parts.length > 1;
    if (codes.has(part)) return `${part}^5`;
    return pasted || short || character ? `${part}^1` : part;
  });
  const others = said.flatMap(([typed, words]) => (typed.test(text) ? words : []));
  for (const word of new Set(others))
    if (word in index && !parts.includes(word)) found.push(`${word}^2`);
  return found.join(" ");
};

// Each word once: twice the same would count twice.
function split(text, index) {
  const spaced = text.replace(/\p{sc=Han}+/gu, (run) => ` ${chineseWords(run, index).join(" ")} `);
  return [...new Set(spaced.split(lunr.tokenizer.separator))].filter(Boolean);
}

// Characters without spaces between them, as words that the index has: from each place the longest,
// or the character, if it goes beyond those before it.
function chineseWords(run, index) {
  const found = [];
  let end = 0;
  for (let start = 0; start < run.length; start++) {
    let to = run.length;
    while (to > start + 1 && !(run.slice(start, to) in index)) to--;
    if (to <= end) continue;
    found.push(run.slice(start, to));
    end = to;
  }
  return found;
}
