// What has the focus: its tag, its name, and whether one sees it.
() => {
  const one = document.activeElement;
  const { outlineStyle, outlineWidth } = getComputedStyle(one);
  const name = one.getAttribute("aria-label") ?? document.getElementById(one.getAttribute("aria-labelledby"))?.textContent;
  return { tag: one.tagName, name: name ?? one.textContent, outlined: outlineStyle !== "none" && outlineWidth !== "0px" };
}
