// Fetches the page again when the extender says that something has changed, and puts the part in
// #live in place of the one that is shown. Without this script the pages work and stand still.
"use strict";

(() => {
  const POLL_MS = 15000;
  const AGAIN_MS = 1000;
  const live = () => document.getElementById("live");
  document.querySelectorAll("textarea[data-limit]").forEach((area) => {
    // A text that is too long stays here.
    area.addEventListener("input", () => {
      const bytes = new TextEncoder().encode(area.value).length;
      const most = Number(area.dataset.limit);
      area.setCustomValidity(bytes > most ? `This has ${bytes} bytes; at most ${most} are allowed.` : "");
    });
  });
  if (!live()) return;
  if (matchMedia("(max-width: 800px)").matches) {
    // On a phone the legend would stand before all that it explains.
    live().querySelectorAll(".legend").forEach((each) => (each.open = false));
  }
  let busy = false;
  let wanted = null;

  async function refresh() {
    if (busy || wanted === null || document.hidden) return;
    if (live().contains(document.activeElement) && document.activeElement.matches("input, select, textarea")) return;
    busy = true;
    const version = wanted;
    let stale = false;
    wanted = null;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
      if (answer.type === "opaqueredirect" || answer.status === 401) {
        location.reload(); // the session is over
        return;
      }
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = page.getElementById("live");
        if (fresh) {
          exchange(fresh);
          stale = Number(fresh.dataset.version) < Number(version);
        }
      }
    } catch {
      // The extender is away; the events begin anew once it is back.
    } finally {
      busy = false;
    }
    if (wanted !== null) {
      refresh(); // there was an event meanwhile
    } else if (stale) {
      // The extender shows a page for a while after something has changed, and tells that once.
      wanted = version;
      setTimeout(refresh, AGAIN_MS);
    }
  }

  // Keeps what the reader has opened or closed, and where the keyboard is.
  function exchange(fresh) {
    const before = live();
    const opened = new Map([...before.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
    const focus = document.activeElement;
    const link = before.contains(focus) ? focus.getAttribute("href") : null;
    fresh.querySelectorAll("details[id]").forEach((each) => {
      if (opened.has(each.id)) each.open = opened.get(each.id);
    });
    before.replaceWith(fresh);
    if (link) {
      [...fresh.querySelectorAll("a")].find((each) => each.getAttribute("href") === link)?.focus();
    }
  }

  function tell(version) {
    wanted = version === live().dataset.version ? null : version;
    refresh();
  }

  let polling = null;
  const events = new EventSource("/map/events");
  events.onmessage = (event) => tell(event.data);
  events.onerror = () => {
    // Too many listeners, or none allowed: look now and then instead.
    if (events.readyState === EventSource.CLOSED && polling === null) {
      polling = setInterval(() => tell("?"), POLL_MS);
    }
  };
  document.addEventListener("visibilitychange", refresh);
  document.addEventListener("focusout", () => setTimeout(refresh, 0));
  addEventListener("pagehide", () => events.close());
})();
