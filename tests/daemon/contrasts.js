// Of every element that shows words of its own: the words, and the contrast between them and their ground.
() => {
  const parsed = (colour) => {
    const numbers = colour.match(/[\d.]+/g).map(Number);
    const whole = colour.startsWith("color(") ? 1 : 255;
    return { rgb: numbers.slice(0, 3).map((each) => each / whole), alpha: numbers[3] ?? 1 };
  };
  const over = (top, under) => top.rgb.map((each, at) => each * top.alpha + under[at] * (1 - top.alpha));
  const ground = (element) => {
    if (!element) return [1, 1, 1];
    const own = parsed(getComputedStyle(element).backgroundColor);
    return own.alpha === 1 ? own.rgb : over(own, ground(element.parentElement));
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
    const words = own.map((node) => node.data.trim()).join("");
    if (!words || !element.checkVisibility()) continue;
    const behind = ground(element);
    const [a, b] = [light(over(parsed(getComputedStyle(element).color), behind)), light(behind)];
    found.push([words, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]);
  }
  return found;
}
