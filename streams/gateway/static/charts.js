// What choosing saves so far, with its interval, and accuracy and cost over time beside the baseline's.

import uPlot from '/static/vendor/uPlot.esm.js';
import { cost, el, inUnit, percent, points } from '/static/dom.js';

const GAINS = [
  { title: 'Cost saved so far, with its 95 % interval', least: -1, shown: percent, of: ({ cost_ratio: r }) => r && [1 - r.mean, r.high === null ? -1 : 1 - r.high, 1 - r.low] },
  { title: 'Accuracy gained so far in points, with its 95 % interval', least: -1, shown: points, of: ({ accuracy_difference: d }) => d && [d.mean, d.low, d.high] },
];
const ARMS = [
  { title: () => `Mean ${inUnit()} of a query`, least: 0, shown: cost, of: (point) => point.cost },
  { title: () => 'Right answers', least: 0, shown: percent, of: (point) => point.accuracy },
];

export function charts() {
  const place = el('div', { class: 'charts' });
  let drawn = new Map(), last = null;
  const show = (found) => {
    last = found;
    const { over_time: gains, control } = found.uplift, { policy, control: other } = found.series;
    const wanted = new Map();
    for (const kind of GAINS) if (found.uplift.cost_ratio) wanted.set(kind.title, { kind, data: band(gains, kind.of), names: ['so far', 'from', 'to'] });
    for (const kind of ARMS) if (Math.max(policy.length, other.length) > 1) wanted.set(kind.title(), { kind, data: joined(policy, other, kind.of), names: ['policy', other.length ? control : null] });
    const kinds = [...wanted].map(([title, { names }]) => title + names).join();
    if (place.dataset.kinds !== kinds) { // a chart more or less, another baseline, or other colours
      place.dataset.kinds = kinds;
      place.replaceChildren();
      drawn = new Map([...wanted].map(([title, chart]) => [title, draw(place, title, chart, () => last.marks)]));
    }
    for (const [title, { data }] of wanted) drawn.get(title).setData(data);
  };
  new ResizeObserver(() => drawn.forEach((plot) => plot.setSize({ width: wide(plot.root.parentNode), height: 190 }))).observe(place);
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const again = () => { place.dataset.kinds = ''; if (last) show(last); };
  dark.addEventListener('change', again);
  return { place, show, end: () => dark.removeEventListener('change', again) };
}

const band = (points, of) => [points.map((point) => point.at), ...[0, 1, 2].map((at) => points.map((point) => of(point)?.[at] ?? null))];

// Both arms on one axis of time, with null where only the other has a point.
function joined(policy, control, of) {
  const times = [...new Set([...policy, ...control].map((point) => point.at))].sort((a, b) => a - b);
  const along = (points) => { const by = new Map(points.map((point) => [point.at, of(point)])); return times.map((at) => by.get(at) ?? null); };
  return [times, along(policy), ...(control.length ? [along(control)] : [])];
}

function draw(place, title, { kind, names }, marks) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour('--text'), grid: { stroke: colour('--line'), width: 1 }, ticks: { stroke: colour('--line'), width: 1 } };
  const value = (u, at) => (at === null ? '–' : kind.shown(at));
  const strokes = names.length > 2 ? ['--accent', '--band', '--band'] : ['--accent', '--quiet'];
  const box = el('figure', { class: 'chart' }, el('figcaption', {}, title));
  place.append(box);
  return new uPlot({
    width: wide(box), height: 190,
    hooks: { draw: [(u) => lines(u, marks(), colour('--warn'))] },
    scales: { y: { range: (u, low, high) => uPlot.rangeNum(Math.max(low, kind.least), Math.max(high, kind.least + 0.01), 0.1, true) } },
    axes: [{ ...axis, space: 70, values: (u, splits, at, space, step) => splits.map((each) => moment(each, step)) }, { ...axis, values: (u, splits) => splits.map(kind.shown), size: 62 }],
    bands: names.length > 2 ? [{ series: [3, 2], fill: colour('--band') }] : [],
    series: [
      { label: 'at', value: (u, at) => (at === null ? '–' : moment(at, 1)) },
      ...names.filter(Boolean).map((label, at) => ({ label, value, stroke: colour(strokes[at]), width: at ? 1 : 2, dash: names.length === 2 && at ? [6, 4] : [], spanGaps: true, points: { show: false } })),
    ],
  }, [[], ...names.filter(Boolean).map(() => [])], box);
}

const wide = (box) => Math.max(240, box.clientWidth - 16);

function moment(at, step) {
  const date = new Date(at * 1000);
  if (step >= 86400) return date.toLocaleDateString([], { month: 'short', day: 'numeric' });
  return date.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', ...(step < 60 ? { second: '2-digit' } : {}) });
}

// Each change as a dashed line with its number in the list below.
function lines(u, marks, colour) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour;
  ctx.setLineDash([4, 4]);
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  marks.forEach((mark, at) => {
    if (mark.at < u.scales.x.min || mark.at > u.scales.x.max) return;
    const x = u.valToPos(mark.at, 'x', true);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(String(at + 1), x + 3, bbox.top + 11 * devicePixelRatio);
  });
  ctx.restore();
}
