// Takes the README's picture from the page as it is built.
import { fileURLToPath } from "node:url";
import { serve } from "../../scripts/serve.mjs";
import { DIST, launch } from "./browser.js";

const browser = await launch();
const { server, url } = await serve(DIST);
const page = await browser.newPage({ viewport: { width: 1280, height: 760 }, colorScheme: "light" });
await page.goto(url);
await page.locator("#verdict").waitFor();
await page.locator("#answer .try").waitFor();
await page.screenshot({ path: fileURLToPath(new URL("../../docs/page.png", import.meta.url)) });
await browser.close();
server.close();
