// The site's search, in the place of Zensical's: it takes the same messages and the same index, and ranks sections by
// BM25F. A question need not have all its words in one section, words are compared without their endings, and one
// that the index does not have is taken for the nearest that it has.
"use strict";

const [SETUP, READY, QUERY, RESULT, FAILED] = [0, 1, 2, 3, 4];
const FIELDS = { title: 3.5, path: 1.5, text: 1 }; // weights of a word in each
const SATURATION = 1.2; // k1 of BM25
const LENGTH = { title: 0.3, path: 0.3, text: 0.5 }; // b of BM25: how much long fields count less
const PAGE = 0.35; // what the whole page's score adds to a section's
// What sections of some pages count: the reference less than guides, unless a name is asked for, and so what is for those
// who change the project.
const LESS = { "reference/": 0.45, "CHANGELOG/": 0.5, "CONTRIBUTING/": 0.7, "development/": 0.7, "architecture/": 0.7 };
const NAMED = 3; // a section whose title is the question
const AGAIN = 0.6; // each further section of a page that is shown already
const SHOWN = 10;
const STOP = new Set(
  ("a about after all also am an and any are as at be because been but by can cannot could did do does doing don for " +
    "from get gets getting had has have how i if in into is it its just like m me my no not of on one or our s same so " +
    "some t than that the their them then there they this to up use used using want was way we were what when where " +
    "which while who why will with without work works would you your dragon python").split(" ")
);

let index;

function stem(word) {
  if (word.length < 4 || /\d/.test(word)) return word;
  let w = word.replace(/(ies)$/, "y").replace(/(sses)$/, "ss").replace(/([^su])s$/, "$1");
  const cut = w.replace(/(izations?|isations?|ations?|ators?|ments?|ings?|edly|ed|ers?|ables?|ibles?|ions?|ly)$/, "");
  if (cut.length >= 3 && /[aeiouy]/.test(cut)) w = cut;
  w = w.replace(/([bdfgklmnprt])\1$/, "$1");
  return w.length > 3 ? w.replace(/e$/, "") : w;
}

/** The words of a text with their places; names, options and versions are words as a whole and in their parts. */
function words(text) {
  const found = [];
  const spans = /<[^>]*>|&\w+;|[\p{L}\p{N}]+/gu;
  const compounds = /<[^>]*>|[\p{L}\p{N}]+(?:[-_.][\p{L}\p{N}]+)+/gu;
  for (const match of text.matchAll(compounds)) {
    const word = match[0].toLowerCase();
    if (word[0] !== "<") found.push({ word, raw: word, start: match.index, end: match.index + word.length });
  }
  for (const match of text.matchAll(spans)) {
    if (match[0][0] === "<" || match[0][0] === "&") continue;
    const start = match.index;
    const end = start + match[0].length;
    found.push({ word: stem(match[0].toLowerCase()), raw: match[0].toLowerCase(), start, end });
    const parts = match[0].match(/[A-Z]?[a-z]+|[A-Z]+(?![a-z])/g) ?? [];
    if (parts.length > 1 && !/^[A-Z]+s?$/.test(match[0])) {
      for (const part of parts) {
        if (part.length > 1) found.push({ word: stem(part.toLowerCase()), raw: part.toLowerCase(), start, end });
      }
    }
  }
  return found;
}

/** The words of a section's field. The search box counts places in a path as if its parts had nothing between them. */
function wordsOf(section, field) {
  if (field !== "path") return words(section[field] ?? "");
  let before = 0;
  return (section.path ?? []).flatMap((part) => {
    const found = words(part).map((each) => ({ ...each, start: each.start + before, end: each.end + before }));
    before += part.length;
    return found;
  });
}

function setup(data) {
  const postings = new Map(); // word → Map(section → {field: count})
  const lengths = { title: [], path: [], text: [] };
  data.items.forEach((item, id) => {
    for (const field of Object.keys(FIELDS)) {
      const all = wordsOf(item, field);
      lengths[field].push(all.length);
      for (const { word } of all) {
        if (!postings.has(word)) postings.set(word, new Map());
        const sections = postings.get(word);
        if (!sections.has(id)) sections.set(id, { title: 0, path: 0, text: 0 });
        sections.get(id)[field] += 1;
      }
    }
  });
  const mean = (all) => all.reduce((sum, each) => sum + each, 0) / Math.max(1, all.length) || 1;
  const means = Object.fromEntries(Object.keys(FIELDS).map((field) => [field, mean(lengths[field])]));
  const pages = data.items.map((item) => item.location.split("#")[0]);
  index = { items: data.items, postings, lengths, means, pages };
}

/** Whether two words differ in `most` letters at most. */
function near(a, b, most) {
  if (Math.abs(a.length - b.length) > most) return false;
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
    }
    if (Math.min(...next) > most) return false;
    row = next;
  }
  return row[b.length] <= most;
}

/** The words of the index that a word of the question stands for, each with its weight. */
function meanings({ word, raw }, isLast) {
  const found = new Map();
  if (index.postings.has(word)) found.set(word, 1);
  if (isLast && raw.length > 1) {
    for (const other of index.postings.keys()) {
      if (other !== word && other.startsWith(raw)) found.set(other, found.has(word) ? 0.2 : 0.7);
    }
  }
  if (found.size === 0 && word.length > 3) {
    const most = word.length > 6 ? 2 : 1;
    for (const other of index.postings.keys()) {
      if (other[0] === word[0] && near(word, other, most)) found.set(other, 0.5);
    }
  }
  return found;
}

function scores(question) {
  const all = words(question);
  const asked = all.filter(({ raw }) => !STOP.has(raw));
  const total = index.items.length;
  const sections = new Map();
  const matched = new Map(); // word of the index → whether it is the question's own
  const chosen = asked.length > 0 ? asked : all;
  const once = [...new Map(chosen.map((each) => [each.word, each])).values()];
  once.forEach((each, place) => {
    const isLast = place === once.length - 1 && !/\s$/.test(question);
    const best = new Map();
    for (const [word, weight] of meanings(each, isLast)) {
      matched.set(word, weight === 1);
      const posting = index.postings.get(word);
      const rarity = Math.log(1 + (total - posting.size + 0.5) / (posting.size + 0.5));
      for (const [id, counts] of posting) {
        let frequency = 0;
        for (const field of Object.keys(FIELDS)) {
          const relative = index.lengths[field][id] / index.means[field];
          frequency += (FIELDS[field] * counts[field]) / (1 - LENGTH[field] + LENGTH[field] * relative);
        }
        const score = (weight * rarity * frequency * (SATURATION + 1)) / (frequency + SATURATION);
        best.set(id, Math.max(best.get(id) ?? 0, score));
      }
    }
    for (const [id, score] of best) {
      if (!sections.has(id)) sections.set(id, { score: 0, words: new Map() });
      const section = sections.get(id);
      section.score += score;
      section.words.set(each.word, score);
    }
  });
  return { sections, matched, asked: once };
}

function rank(question) {
  const { sections, matched, asked } = scores(question);
  const pages = new Map(); // page → word → its best score in a section
  for (const [id, { words: found }] of sections) {
    const page = index.pages[id];
    if (!pages.has(page)) pages.set(page, new Map());
    const best = pages.get(page);
    for (const [word, score] of found) best.set(word, Math.max(best.get(word) ?? 0, score));
  }
  const isName = !/\s/.test(question.trim());
  const ranked = [...sections].map(([id, { score, words: found }]) => {
    const page = index.pages[id];
    const whole = [...pages.get(page).values()].reduce((sum, each) => sum + each, 0);
    const coverage = found.size / asked.length;
    let result = (score + PAGE * whole) * (0.5 + 0.5 * coverage);
    const kind = Object.keys(LESS).find((prefix) => page.startsWith(prefix));
    if (kind && !isName) result *= LESS[kind];
    if (index.items[id].title.split(".").pop().toLowerCase() === question.trim().toLowerCase()) result *= NAMED;
    return { id, page, score: result };
  });
  ranked.sort((a, b) => b.score - a.score || a.id - b.id);
  const seen = new Map();
  for (const each of ranked) {
    const before = seen.get(each.page) ?? 0;
    each.score *= AGAIN ** before;
    seen.set(each.page, before + 1);
  }
  ranked.sort((a, b) => b.score - a.score || a.id - b.id);
  return { ranked, matched };
}

function item({ id, score }, matched) {
  const matches = [];
  for (const field of Object.keys(FIELDS)) {
    const ranges = wordsOf(index.items[id], field)
      .filter(({ word }) => matched.has(word))
      .map(({ word, start, end }) => ({ start, end, value: matched.get(word) ? end - start : -1 }))
      .sort((a, b) => a.start - b.start || b.end - a.end)
      .filter((range, place, all) => place === 0 || range.start >= all[place - 1].end);
    if (ranges.length > 0) matches.push({ id, field, score, value: { highlight: { ranges } } });
  }
  return { id, matches };
}

function answer({ input, page }) {
  const question = typeof input === "string" ? input : "";
  const { ranked, matched } = rank(question);
  const from = page?.from ?? 0;
  const to = from + SHOWN;
  const pagination = { total: ranked.length };
  if (from > 0) pagination.prev = { id: 0, size: SHOWN, from: Math.max(0, from - SHOWN) };
  if (to < ranked.length) pagination.next = { id: 0, size: SHOWN, from: to };
  return {
    items: ranked.slice(from, to).map((each) => item(each, matched)),
    query: { select: { documents: [], terms: [] }, values: [] },
    aggregations: [],
    pagination,
  };
}

self.onmessage = ({ data: message }) => {
  try {
    if (message.type === SETUP) {
      setup(message.data);
      self.postMessage({ type: READY });
    } else if (message.type === QUERY) {
      self.postMessage({ type: RESULT, data: answer(message.data) });
    }
  } catch {
    self.postMessage({ type: FAILED });
  }
};
