// A search as a tree: every draft, its score, what became of it, and the path that was chosen.

import { hierarchy, tree as layout } from '/static/vendor/d3-hierarchy.js';
import { counted, el, svg, table } from '/static/dom.js';

export const FATES = {
  open: 'waits for its score', kept: 'kept', finished: 'finished', early_exit: 'pruned: cannot win any more',
  beam: 'pruned: not among the best', cut: 'cut off unfinished', stopped: 'stopped by the budget',
};
const LABEL = 34, MARGIN = 14; // the width of a score, and the room for a circle at the edge

// The tree always fits its frame: the more drafts, the smaller they are, and scores are written where there is room.
export function drawTree(drafts) {
  if (!drafts.length) return el('p', { class: 'quiet' }, 'No draft yet.');
  const nodes = drafts.map((draft) => ({ draft, children: [] }));
  const root = { draft: null, children: [] };
  for (const node of nodes) (node.draft.parent < 0 ? root : nodes[node.draft.parent]).children.push(node);
  const top = hierarchy(root);
  const width = Math.min(1100, document.documentElement.clientWidth - 40);
  const height = Math.min(520, Math.max(120, 26 * top.leaves().length));
  layout().size([height - 2 * MARGIN, width - 2 * MARGIN - LABEL])(top);
  const places = top.descendants(), step = (width - 2 * MARGIN - LABEL) / top.height;
  const rows = [...Map.groupBy(places, (place) => place.depth).values()].flatMap((row) => row.slice(1).map((place, at) => place.x - row[at].x));
  const gap = Math.min(24, ...rows), radius = Math.min(5, Math.max(1.2, 0.4 * gap));
  const drawing = svg('svg', { viewBox: `${-MARGIN} ${-MARGIN} ${width} ${height}`, role: 'img', 'aria-label': summary(drafts) });
  for (const { source, target } of top.links()) {
    const middle = (source.y + target.y) / 2;
    drawing.append(svg('path', {
      class: `link${target.data.draft.chosen ? ' chosen' : ''}`,
      d: `M${source.y},${source.x}C${middle},${source.x} ${middle},${target.x} ${target.y},${target.x}`,
    }));
  }
  for (const place of places) {
    const draft = place.data.draft;
    const group = svg('g', { class: draft ? draft.fate : 'root', transform: `translate(${place.y},${place.x})` });
    group.append(svg('circle', { r: draft?.chosen ? Math.max(4, 1.3 * radius) : radius }));
    if (draft) {
      const title = svg('title');
      title.textContent = describe(draft);
      group.append(title);
      if (step > LABEL + 6 && (gap >= 11 || draft.chosen)) {
        const label = svg('text', { x: 9, y: place.children ? -5 : 4 });
        label.textContent = draft.score === null ? '…' : draft.score.toFixed(2);
        group.append(label);
      }
    }
    drawing.append(group);
  }
  return el('div', { class: 'tree' }, drawing);
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
    return el('li', {}, el('span', { class: 'sample' }, sample), ` ${words}`);
  }));
}

function describe(draft) {
  const bound = draft.bound === null ? '' : `, could still reach ${draft.bound.toFixed(3)} at best`;
  const score = draft.score === null ? 'no score yet' : `score ${draft.score.toFixed(3)}`;
  return `Step ${draft.depth}, tree ${draft.tree + 1}: ${score}, ${FATES[draft.fate]}${bound}, ${counted(draft.tokens, 'token')}. ${draft.text}`.trim();
}

function summary(drafts) {
  const finished = drafts.filter((draft) => draft.fate === 'finished').length;
  const steps = Math.max(...drafts.map((draft) => draft.depth));
  return `${counted(drafts.length, 'draft')} in ${counted(steps, 'step')}, ${counted(finished, 'path')} finished`;
}
