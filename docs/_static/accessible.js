// What axe-core asks of pages and the theme leaves out.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll('[role="heading"]:not([aria-level])').forEach((one) => one.setAttribute("aria-level", "2"));
  document.querySelectorAll("pre").forEach((one) => { one.tabIndex = 0; });
  document.querySelector("aside.sidebar-drawer")?.setAttribute("aria-label", "Site");
  document.querySelector("aside.toc-drawer")?.setAttribute("aria-label", "On this page");
  const tools = document.querySelector(".content-icon-container");
  tools?.setAttribute("role", "region");
  tools?.setAttribute("aria-label", "Page tools");
});
