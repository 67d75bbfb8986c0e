// What axe-core asks of pages and the theme leaves out, and figures that open alone.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll('[role="heading"]:not([aria-level])').forEach((one) => one.setAttribute("aria-level", "2"));
  document.querySelectorAll("pre, .table-wrapper, .math-wrapper").forEach((one) => { one.tabIndex = 0; });
  document.querySelector("aside.sidebar-drawer")?.setAttribute("aria-label", "Site");
  document.querySelector("aside.toc-drawer")?.setAttribute("aria-label", "On this page");
  const tools = document.querySelector(".content-icon-container");
  tools?.setAttribute("role", "region");
  tools?.setAttribute("aria-label", "Page tools");
  // A card of the gallery is covered by a link whose words are hidden, and shown with a note in which math is source.
  document.querySelectorAll(".sphx-glr-thumbcontainer").forEach((card) => {
    card.querySelector("a")?.setAttribute("aria-label", card.querySelector(".sphx-glr-thumbnail-title")?.textContent ?? "");
    const note = card.getAttribute("tooltip") ?? "";
    card.setAttribute("tooltip", note.replaceAll("^\\top", "ᵀ").replaceAll("\\ge", "≥"));
  });
  // Labels of a figure are small on a telephone: a tap opens it alone, to be enlarged.
  document.querySelectorAll("article img:not(a img, .sphx-glr-thumbcontainer img)").forEach((one) => {
    const link = document.createElement("a");
    link.href = one.src;
    // Of a pair the theme hides one; its link must go with it.
    link.className = ["only-light", "only-dark"].filter((name) => one.classList.contains(name)).join(" ");
    one.replaceWith(link);
    link.append(one);
  });
});
