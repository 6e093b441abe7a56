// What people type or paste, as words for Material's search worker: the build of the site puts this
// in front of it (tools/site/theme.py). The text in the field stays as it is.

// index: lunr's, by word.
self.words = (query, index) => {
  const found = query
    .toLowerCase()
    .replace(/[~^*"\\]|(?<![\w+])\++/g, " ") // operators of lunr, which nobody means
    .replace(/(?<!\w)-(\d+)/g, " $1^5 ") // an exit code says more than its line
    .replace(/\p{sc=Han}+/gu, (run) => ` ${chineseWords(run, index).join(" ")} `)
    .split(lunr.tokenizer.separator);
  // Twice the same word would count twice.
  const parts = [...new Set(found)].filter(Boolean);
  // The worker looks for every word that begins with a part: for ancdata by an. With ^1 lunr looks
  // for the part alone: what was pasted is whole, but the last word that was typed may be half.
  const pasted = query.length > 40;
  const short = /^([a-z]{1,3}|\p{sc=Han})$/u;
  return parts
    .map((part, place) => {
      const alone = pasted || (short.test(part) && place < parts.length - 1);
      return alone && !part.includes("^") ? `${part}^1` : part;
    })
    .join(" ");
};

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
