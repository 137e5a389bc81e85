// A static server for the built page: `node scripts/serve.mjs DIR [PORT]`. Loopback only; no dependencies.
import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize, resolve, sep } from "node:path";
import { pathToFileURL } from "node:url";

const TYPES = {
  ".css": "text/css; charset=utf-8",
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".json": "application/json",
  ".png": "image/png",
  ".svg": "image/svg+xml",
  ".wasm": "application/wasm",
};

/** Serves `dir` on the first free port from `port` up; 0 takes any. Resolves to `{ url, server }`. */
export async function serve(dir, port = 0) {
  const root = resolve(dir);
  const server = createServer(async (request, response) => {
    const path = decodeURIComponent(new URL(request.url, "http://x").pathname);
    const file = join(root, normalize(path.endsWith("/") ? `${path}index.html` : path));
    const known = file.startsWith(root + sep) && (await stat(file).catch(() => null));
    if (!known || !known.isFile()) {
      response.writeHead(404, { "content-type": "text/plain" }).end("not found\n");
      return;
    }
    response.writeHead(200, {
      "content-type": TYPES[extname(file)] ?? "application/octet-stream",
      "content-length": known.size,
      "cache-control": "no-cache",
      "x-content-type-options": "nosniff",
    });
    createReadStream(file).pipe(response);
  });
  for (let tried = port; ; tried++) {
    const error = await new Promise((done) => {
      server.once("error", done);
      server.listen(tried, "127.0.0.1", () => done(null));
    });
    if (!error) break;
    if (error.code !== "EADDRINUSE" || tried === 0 || tried >= port + 20) throw error;
    server.removeAllListeners("error");
  }
  return { server, url: `http://127.0.0.1:${server.address().port}/` };
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const { url } = await serve(process.argv[2] ?? "dist", Number(process.argv[3] ?? 8080));
  console.log(`vram-budget is at ${url} (Ctrl-C ends it)`);
}
