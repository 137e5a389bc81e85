// One Chromium for a test file, and pages in it that watch what must not happen: a request after the page has loaded to
// anything but its own files, an error in the console, a refusal by the content security policy.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { after, before } from "node:test";
import { chromium } from "playwright-core";
import { serve } from "../../scripts/serve.mjs";

export const DIST = fileURLToPath(new URL("../../dist/", import.meta.url));
export const AXE = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
export const WIDTHS = [
  { name: "1280 px", width: 1280, height: 900 },
  { name: "390 px", width: 390, height: 844 },
];

const CHROMIUM = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(
  (path) => path && existsSync(path),
);

export function launch() {
  // Root may not use Chromium's sandbox; the pages are our own.
  const args = process.getuid?.() === 0 ? ["--no-sandbox", "--disable-dev-shm-usage"] : [];
  return chromium.launch({ executablePath: CHROMIUM, args });
}

/** Starts a browser and a server for the tests of a file; `open` opens a watched page. */
export function browser() {
  const held = {};
  before(async () => {
    held.browser = await launch();
    Object.assign(held, await serve(DIST));
  });
  after(async () => {
    await held.browser.close();
    held.server.close();
  });
  return {
    get url() {
      return held.url;
    },
    /** Opens the page at `path` (or a whole URL) and waits for the answer, unless `boot` is false. */
    async open({ path = "", width = 1280, height = 900, scheme = "light", bypassCSP = false, boot = true, setup } = {}) {
      const context = await held.browser.newContext({
        viewport: { width, height },
        colorScheme: scheme,
        bypassCSP,
        permissions: ["clipboard-read", "clipboard-write"],
      });
      const page = await context.newPage();
      const problems = [];
      const requests = [];
      let loaded = false;
      page.on("console", (m) => ["error", "warning"].includes(m.type()) && problems.push(`${m.type()}: ${m.text()}`));
      page.on("pageerror", (error) => problems.push(`page error: ${error.message}`));
      page.on("request", (request) => {
        const url = request.url();
        if (url.startsWith("data:") || url.startsWith("blob:")) return;
        requests.push(url);
        const own = url.startsWith(held.url) || url.startsWith("file:");
        if (!own || loaded) problems.push(`request${loaded ? " after load" : ""}: ${url}`);
      });
      await page.addInitScript(() => {
        globalThis.refused = [];
        document.addEventListener("securitypolicyviolation", (e) => globalThis.refused.push(e.violatedDirective));
      });
      await setup?.(page, context);
      await page.goto(path.includes("://") ? path : held.url + path);
      if (boot) {
        await page.locator("#verdict").waitFor();
        // The other half of the program comes once the answer is drawn, then what reads long files, and nothing after that.
        await page.locator("html:not([data-partial])[data-reader]").waitFor({ timeout: 60_000 });
        loaded = true;
      }
      return {
        page,
        context,
        requests,
        /** Ends the page and says whether all was well. */
        async close({ expected = [] } = {}) {
          const refused = await page.evaluate(() => globalThis.refused).catch(() => []);
          await context.close();
          const left = problems.filter((problem) => !expected.some((pattern) => pattern.test(problem)));
          assert.deepEqual(left, [], "no request after load, no console error");
          assert.deepEqual(refused, [], "nothing refused by the content security policy");
        },
      };
    },
  };
}

/** The verdict and the figure beside it, as a person reads them once they are refined. */
export async function answer(page) {
  await page.locator("#answer:not([aria-busy])").waitFor();
  return {
    verdict: (await page.locator("#verdict").innerText()).trim(),
    needed: Number.parseFloat(await page.locator("#needed > span").first().innerText()),
  };
}

/** Opens the answer's details where it is a bar at the bottom. */
export async function openAnswer(page) {
  const button = page.locator(".bar-open");
  if ((await button.isVisible()) && (await button.getAttribute("aria-expanded")) === "false") await button.click();
}

/** Closes them again. */
export async function closeAnswer(page) {
  const button = page.locator(".bar-open");
  if ((await button.isVisible()) && (await button.getAttribute("aria-expanded")) === "true") await button.click();
}

/** Pastes `text` where no field has the focus. */
export async function pasteAnywhere(page, text) {
  await page.evaluate((text) => {
    document.activeElement?.blur();
    const data = new DataTransfer();
    data.setData("text/plain", text);
    document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
  }, text);
}

/** Drops a file with `text` on the page. */
export async function drop(page, name, text) {
  await page.evaluate(
    ([name, text]) => {
      const data = new DataTransfer();
      data.items.add(new File([text], name, { type: "application/json" }));
      for (const type of ["dragover", "drop"]) {
        document.body.dispatchEvent(new DragEvent(type, { dataTransfer: data, bubbles: true, cancelable: true }));
      }
    },
    [name, text],
  );
}

/** The processor's time of the page's tasks while `act` runs, in ms, the longest last. */
export async function tasks(page, act) {
  const cdp = await page.context().newCDPSession(page);
  const events = [];
  cdp.on("Tracing.dataCollected", ({ value }) => events.push(...value));
  await cdp.send("Tracing.start", { transferMode: "ReportEvents", traceConfig: { includedCategories: ["devtools.timeline", "disabled-by-default-devtools.timeline"] } });
  await page.evaluate(() => document.body.dispatchEvent(new Event("input")));
  try {
    await act();
  } catch (error) {
    await cdp.detach();
    throw error;
  }
  const complete = new Promise((done) => cdp.on("Tracing.tracingComplete", done));
  await cdp.send("Tracing.end");
  await complete;
  const { pid, tid } = events.find((e) => e.name === "EventDispatch" && e.args.data?.type === "input");
  return events.filter((e) => e.name === "RunTask" && e.pid === pid && e.tid === tid && e.tdur).map((e) => e.tdur / 1000).sort((a, b) => a - b);
}

/** Repeats `check` until it passes: the page draws a moment after an event. */
export async function eventually(check, timeout = 5000) {
  for (const end = Date.now() + timeout; ; ) {
    try {
      return await check();
    } catch (error) {
      if (Date.now() > end) throw error;
      await new Promise((done) => setTimeout(done, 25));
    }
  }
}
