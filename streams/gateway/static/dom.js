// Elements from values. Text becomes text nodes only: what models and people write never becomes markup.

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
    else if (key === 'share') made.style.setProperty('--share', value); // the content policy allows no style attribute
    else if (value === true) made.setAttribute(key, '');
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const cell = (value) => (value instanceof Node && /^T[DH]$/.test(value.nodeName) ? value : el('td', {}, value ?? '–'));

export function table(caption, heads, rows, foot) {
  return el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption },
    el('table', {},
      el('thead', {}, el('tr', {}, heads.map((head) => el('th', { scope: 'col' }, head)))),
      el('tbody', {}, rows.map((cells) => el('tr', {}, cells.map(cell)))),
      foot ? el('tfoot', {}, el('tr', {}, foot.map(cell))) : null));
}

// Put new children in a place that is shown again and again: what was scrolled stays, and so does the focus.
export function replace(place, children) {
  const regions = () => [...place.querySelectorAll('[role=region]')];
  const scrolled = new Map(regions().map((region) => [region.getAttribute('aria-label'), region.scrollLeft]));
  const active = place.contains(document.activeElement) ? document.activeElement : null;
  const name = active && (active.getAttribute('href') ?? active.getAttribute('aria-label'));
  place.replaceChildren(...children.flat().filter(Boolean));
  for (const region of regions()) region.scrollLeft = scrolled.get(region.getAttribute('aria-label')) ?? 0;
  if (name) [...place.querySelectorAll('a, button, [role=region]')].find((each) => (each.getAttribute('href') ?? each.getAttribute('aria-label')) === name)?.focus({ preventScroll: true });
}

export const titled = (word) => word[0].toUpperCase() + word.slice(1);
export const counted = (count, noun, nouns = `${noun}s`) => `${count} ${count === 1 ? noun : nouns}`;
export const percent = (share) => (share === null || share === undefined ? '–' : `${(100 * share).toFixed(0).replace(/^-(0$)?/, (_, zero) => zero ?? '−')} %`);
// A regression may predict more than everything, or less than nothing.
export const predictedShare = (value) => percent(Math.min(1, Math.max(0, value)));
export const points = (gain) => `${gain < 0 ? '−' : '+'}${Math.abs(100 * gain).toFixed(1)}`;

// The unit of costs, `eflops` or `usd`: one for a whole deployment, as the gateway says.
let unit = 'eflops';
export const counts = (said) => { unit = said ?? unit; };
export const named = () => unit;
export const inUnit = () => (unit === 'usd' ? 'USD' : 'eFLOPs');

export function cost(value) {
  if (value === null || value === undefined) return '–';
  if (unit === 'usd') return value.toPrecision(3);
  const units = ['', ' k', ' M', ' G', ' T', ' P', ' E'];
  let at = 0;
  while (Math.abs(value) >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${value.toPrecision(3)}${units[at]}`;
}

export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();
