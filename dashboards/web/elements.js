// What charts and tables are made of, as window.gnomon: elements, words for numbers, the tooltip. All that is drawn takes
// its colours from the style sheet's variables, so that light and dark follow the reader's choice.
'use strict';
window.gnomon = (() => {
  const SVG = 'http://www.w3.org/2000/svg';

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === 'class') made.className = value; else made.setAttribute(key, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined && child !== ''));
    return made;
  }

  function svg(tag, attributes = {}, text = null) {
    const made = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== null) made.textContent = text;
    return made;
  }

  // ---- words and numbers ----------------------------------------------------------------------------------

  // JSON has no infinity: it comes as a word.
  const real = (value) => ({'Infinity': Infinity, '-Infinity': -Infinity}[value] ?? value);
  // Of any number of numbers, which Math.max is not given one by one; -Infinity of none.
  const greatest = (numbers) => numbers.reduce((most, one) => (one > most ? one : most), -Infinity);

  const count = (n) => (typeof n === 'number' ? n.toLocaleString('en') : '–');

  function duration(seconds) {
    if (!(seconds >= 0)) return '–';
    if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
    return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  }

  function percent(value, digits = 3) {
    if (typeof value !== 'number') return '–';
    if (!Number.isFinite(value)) return 'not finite';
    return `${value > 0 ? '+' : ''}${value.toFixed(digits)}%`;
  }

  const shortSite = (site) => site.replace(/^model\.layers\./, '').replace(/\.(self_attn|mlp)\./, ' · ');

  function sitesInWords(sites) {
    if (!sites || sites.length === 0) return '';
    if (sites.length <= 2) return sites.map(shortSite).join(', ');
    return `${sites.slice(0, 2).map(shortSite).join(', ')} and ${sites.length - 2} more`;
  }

  // ---- tooltip --------------------------------------------------------------------------------------------

  let tip = null;
  function showTip(event, content) {
    if (!tip) document.body.append(tip = element('div', {class: 'tooltip', role: 'status'}));
    tip.replaceChildren(content);
    tip.style.display = 'block';
    const box = tip.getBoundingClientRect();
    const right = event.clientX + 16 + box.width < window.innerWidth;
    tip.style.left = `${Math.max(4, right ? event.clientX + 16 : event.clientX - 16 - box.width)}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, window.innerHeight - box.height - 8))}px`;
  }
  function hideTip() { if (tip) tip.style.display = 'none'; }

  function tipTable(title, rows) {
    const body = element('table');
    for (const [swatch, name, value] of rows) {
      const dot = element('span', {class: 'dot'});
      dot.style.background = swatch ? color(swatch) : 'transparent';
      body.append(element('tr', {}, element('td', {}, dot, name), element('td', {}, value)));
    }
    return element('div', {}, element('b', {}, title), body);
  }

  return {color, count, duration, element, greatest, hideTip, percent, real, shortSite, showTip, sitesInWords, svg, tipTable};
})();
