// The checks of accessibility that this console can fail: a list of what is wrong.
const found = [];
const named = (one) => (one.getAttribute("aria-label") || one.labels?.[0]?.innerText || one.innerText || one.alt || "").trim();
const shown = (one) => one.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true });
for (const one of document.querySelectorAll("button, a[href], input, select, textarea, [role=region], svg[role=img]")) {
  if (shown(one) && !named(one) && !one.querySelector("img")) found.push(`no name: ${one.outerHTML.slice(0, 120)}`);
}
const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
for (const id of ids.filter((one, at) => ids.indexOf(one) !== at)) found.push(`id twice: ${id}`);
if (document.querySelectorAll("h1").length !== 1) found.push("there is not one h1");
if (!document.documentElement.lang) found.push("no language");
for (const one of document.querySelectorAll("img")) if (!one.hasAttribute("alt")) found.push("img without alt");
for (const one of document.querySelectorAll("th")) if (!one.hasAttribute("scope")) found.push("th without scope");
for (const one of document.querySelectorAll("[tabindex]")) if (one.tabIndex > 0) found.push("positive tabindex");

const channels = (text) => (text.match(/[\d.]+/g) || []).map(Number);
const light = ([red, green, blue]) => [red, green, blue].map((value) => value / 255)
  .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
  .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
const backgroundOf = (one) => {
  for (let at = one; at; at = at.parentElement) {
    const color = channels(getComputedStyle(at).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color;
  }
  return [255, 255, 255];
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const reported = new Set();
while (walker.nextNode()) {
  const one = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !shown(one) || one.closest("svg, :disabled, option, .skip, tr.fresh")) continue;
  const [a, b] = [light(channels(getComputedStyle(one).color)), light(backgroundOf(one))];
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const key = `${one.tagName}.${one.className}`;
  if (contrast < 4.5 && !reported.has(key)) {
    reported.add(key);
    found.push(`contrast ${contrast.toFixed(2)} of ${key}: ${walker.currentNode.data.trim().slice(0, 40)}`);
  }
}
return found;
