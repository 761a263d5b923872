// Fetches the page again when an event says that the cluster has changed, and replaces the element
// #live by the new one. Without this script the pages work but do not update themselves.
"use strict";

(() => {
  const POLL_MS = 15000;
  const AGAIN_MS = 1000;
  const SILENT_MS = 12000; // two due events are missing
  const LOST_MS = 3000; // a stream that ends begins again at once
  const live = () => document.getElementById("live");
  document.querySelectorAll("textarea[data-limit]").forEach((area) => {
    // A text that is too long is not sent.
    area.addEventListener("input", () => {
      const bytes = new TextEncoder().encode(area.value).length;
      const most = Number(area.dataset.limit);
      area.setCustomValidity(bytes > most ? `This has ${bytes} bytes; at most ${most} are allowed.` : "");
    });
  });
  if (!live()) return;
  // On a phone the open legend and the filters would push the counts off the screen.
  const narrow = matchMedia("(max-width: 800px)").matches;
  if (narrow) document.querySelectorAll(".filtering").forEach((each) => (each.open = false));
  const legend = document.getElementById("legend");
  if (legend) legend.open = kept() ? kept() === "open" : !narrow;
  document.addEventListener("click", (event) => {
    const summary = event.target.closest(".legend > summary");
    if (summary) kept(summary.parentElement.open ? "closed" : "open"); // it turns after the click
  });
  let busy = false;
  let wanted = null;

  // Returns whether the reader has opened or closed the legend, where the browser keeps that.
  function kept(state) {
    try {
      if (state) localStorage.setItem("legend", state);
      return localStorage.getItem("legend");
    } catch {
      return null;
    }
  }

  async function refresh() {
    if (busy || wanted === null || document.hidden) return;
    if (live().contains(document.activeElement) && document.activeElement.matches("input, select, textarea")) return;
    busy = true;
    const version = wanted;
    let stale = false;
    wanted = null;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
      if (answer.type === "opaqueredirect" || [401, 404].includes(answer.status)) {
        location.reload(); // a proxy requires a new sign-in, or the pod or node is gone
        return;
      }
      if (answer.ok) {
        heard();
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = page.getElementById("live");
        if (fresh) {
          exchange(fresh);
          stale = Number(fresh.dataset.version) < Number(version);
        }
      }
    } catch {
      silent(); // the events start again once the extender is back
    } finally {
      busy = false;
    }
    if (wanted !== null) {
      refresh(); // another event has come
    } else if (stale) {
      // The extender keeps a page for a while after a change, and sends one event for the change.
      wanted = version;
      setTimeout(refresh, AGAIN_MS);
    }
  }

  // Keeps the details that the reader has opened or closed, and the focus of the keyboard.
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

  // A banner is shown while the extender does not answer.
  let last = Date.now();
  let lost = null;
  function heard() {
    last = Date.now();
    lost = null;
    document.getElementById("unheard").hidden = true;
  }
  function silent() {
    lost ??= Date.now();
  }
  setInterval(() => {
    const quiet = Date.now() - last > (polling === null ? SILENT_MS : 2 * POLL_MS);
    const banner = document.getElementById("unheard");
    if (document.hidden || !banner.hidden || !(quiet || (lost !== null && Date.now() - lost > LOST_MS))) return;
    banner.querySelector("time").textContent = document.getElementById("as-of").textContent;
    banner.hidden = false;
  }, 1000);

  let polling = null;
  const events = new EventSource("/map/events");
  events.onopen = () => {
    if (lost !== null) tell("?"); // another extender counts versions from the start
    heard();
  };
  events.onmessage = (event) => {
    heard();
    const [version, now] = event.data.split(" ");
    if (version !== live().dataset.version) {
      tell(version);
    } else {
      const time = document.getElementById("as-of");
      time.textContent = time.dateTime = new Date(now * 1000).toISOString().replace("T", " ").replace(".000", "");
      const link = document.getElementById("dashboard");
      if (link) {
        const url = new URL(link.href);
        url.searchParams.set("from", now * 1000 - 3600000);
        url.searchParams.set("to", now * 1000);
        link.href = url.href;
      }
    }
  };
  events.onerror = () => {
    if (events.readyState !== EventSource.CLOSED) {
      silent();
    } else if (polling === null) {
      // There are too many listeners, or none is allowed: poll instead.
      polling = setInterval(() => tell("?"), POLL_MS);
      tell("?");
    }
  };
  document.addEventListener("visibilitychange", refresh);
  document.addEventListener("focusout", () => setTimeout(refresh, 0));
  addEventListener("pagehide", () => events.close());
})();
