// A search as a tree: every draft, its score, what became of it, and the path that was chosen.

import { hierarchy, tree as layout } from '/static/vendor/d3-hierarchy.js';
import { el, svg, table } from '/static/dom.js';

export const FATES = {
  open: 'waits for its score', kept: 'kept', finished: 'finished', early_exit: 'pruned: cannot win any more',
  beam: 'pruned: not among the best', cut: 'cut off unfinished', stopped: 'stopped by the budget',
};

export function drawTree(drafts) {
  if (!drafts.length) return el('p', { class: 'quiet' }, 'No draft yet.');
  const nodes = drafts.map((draft) => ({ draft, children: [] }));
  const root = { draft: null, children: [] };
  for (const node of nodes) (node.draft.parent < 0 ? root : nodes[node.draft.parent]).children.push(node);
  const top = layout().nodeSize([24, 110])(hierarchy(root));
  const places = top.descendants();
  const least = Math.min(...places.map((place) => place.x)), most = Math.max(...places.map((place) => place.x));
  const width = (top.height + 1) * 110, height = most - least + 40;
  const drawing = svg('svg', { width, height, viewBox: `0 ${least - 20} ${width} ${height}`, role: 'img', 'aria-label': summary(drafts) });
  for (const { source, target } of top.links()) {
    const middle = (source.y + target.y) / 2 + 14;
    drawing.append(svg('path', {
      class: `link${target.data.draft.chosen ? ' chosen' : ''}`,
      d: `M${source.y + 14},${source.x}C${middle},${source.x} ${middle},${target.x} ${target.y + 14},${target.x}`,
    }));
  }
  for (const place of places) {
    const draft = place.data.draft;
    const group = svg('g', { class: draft ? draft.fate : 'root', transform: `translate(${place.y + 14},${place.x})` });
    group.append(svg('circle', { r: draft?.chosen ? 7 : 5 }));
    if (draft) {
      const title = svg('title');
      title.textContent = describe(draft);
      const label = svg('text', { x: 9, y: 4 });
      label.textContent = draft.score === null ? '…' : draft.score.toFixed(2);
      group.append(title, label);
    }
    drawing.append(group);
  }
  const box = el('div', { class: 'tree', tabindex: '0', role: 'region', 'aria-label': 'The search as a tree' }, drawing);
  // Begin where the chosen path ends; while nothing is chosen, at the root.
  const ends = places.filter((place) => place.data.draft?.chosen);
  const middle = ends.length ? ends[ends.length - 1].x : top.x;
  requestAnimationFrame(() => { box.scrollTop = middle + 20 - least - box.clientHeight / 2; });
  return box;
}

// The same in words, for those who cannot point at a circle.
export function listed(drafts) {
  const rows = drafts.map((d) => [String(d.depth), String(d.tree + 1), d.score === null ? null : d.score.toFixed(3), el('td', { class: 'text' }, `${FATES[d.fate]}${d.chosen ? ', on the chosen path' : ''}`),
    d.bound === null ? null : d.bound.toFixed(3), String(d.tokens)]);
  return el('details', {}, el('summary', {}, 'Every draft as a list'),
    table('Every draft', ['Step', 'Tree', 'Score', 'What became of it', 'Could still reach', 'Tokens'], rows));
}

export function legend() {
  return el('ul', { class: 'legend' }, Object.entries(FATES).map(([fate, words]) => {
    const sample = svg('svg', { width: 12, height: 12, viewBox: '-6 -6 12 12', 'aria-hidden': 'true' },
      svg('g', { class: fate }, svg('circle', { r: 5 })));
    return el('li', { class: 'tree-key' }, el('span', { class: 'sample' }, sample), ` ${words}`);
  }));
}

function describe(draft) {
  const bound = draft.bound === null ? '' : `, could still reach ${draft.bound.toFixed(3)} at best`;
  const score = draft.score === null ? 'no score yet' : `score ${draft.score.toFixed(3)}`;
  return `Step ${draft.depth}, tree ${draft.tree + 1}: ${score}, ${FATES[draft.fate]}${bound}, ${draft.tokens} tokens. ${draft.text}`.trim();
}

function summary(drafts) {
  const finished = drafts.filter((draft) => draft.fate === 'finished').length;
  return `${drafts.length} drafts in ${Math.max(...drafts.map((draft) => draft.depth))} steps, ${finished} paths finished`;
}
