// Starts the program and says so when it does not start. Plain JavaScript: it must run where the program cannot.
(function () {
  "use strict";
  var root = document.documentElement;
  try {
    // The stored theme before the first paint; the program keeps it from then on.
    var theme = localStorage.getItem("vram-budget.theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch (_) {
    // Storage may be forbidden; the system's theme then holds.
  }

  var started = false;
  function failed(reason) {
    if (started) return;
    document.getElementById("boot-reason").textContent = String(reason);
    document.getElementById("boot-failed").hidden = false;
    var wait = document.getElementById("boot-wait");
    if (wait) wait.hidden = true;
  }
  addEventListener("vram-budget:started", function () {
    started = true;
    document.getElementById("boot-failed").hidden = true;
  });

  // The program is in two halves (scripts/split.mjs). The rest is fetched once the first answer is drawn; what needs it
  // earlier calls a stub, which fetches it at once. `data-partial` is on the root until it is there, and then
  // `vram-budget:whole` is sent.
  function inTwoHalves(url) {
    var first, second, imports;
    root.dataset.partial = "";

    function linked(instance) {
      if (second) return;
      second = instance.exports;
      delete root.dataset.partial;
      // Not from within the program, which may be what called.
      setTimeout(function () {
        dispatchEvent(new Event("vram-budget:whole"));
      });
    }
    function own() {
      return Object.assign({ first: first }, imports);
    }
    function load() {
      return fetch(url)
        .then(function (response) {
          if (!response.ok) throw new Error(url + ": " + response.status);
          return response.arrayBuffer();
        })
        .then(function (bytes) {
          // Twice is no harm: the same functions come to the same places.
          return WebAssembly.instantiate(bytes, own());
        })
        .then(function (made) {
          linked(made.instance);
        });
    }
    function loadInTime() {
      load().catch(function () {
        setTimeout(loadInTime, 3000);
      });
    }
    function loadNow() {
      if (second) return;
      try {
        var request = new XMLHttpRequest();
        request.open("GET", url, false);
        request.overrideMimeType("text/plain; charset=x-user-defined");
        request.send();
        if (request.status !== 200) throw new Error(url + ": " + request.status);
        var bytes = Uint8Array.from(request.responseText, function (char) {
          return char.charCodeAt(0);
        });
        linked(new WebAssembly.Instance(new WebAssembly.Module(bytes), own()));
      } catch (error) {
        broken(error);
        throw error;
      }
    }
    // The first half asks for its stubs one by one, in the order of the rest's exports.
    var asked = 0;
    var stubs = new Proxy({}, {
      get: function () {
        var name = (asked++).toString(36);
        return function () {
          loadNow();
          return second[name].apply(null, arguments);
        };
      },
    });
    // The glue knows nothing of halves: what it starts gets the stubs beside its own imports.
    ["instantiate", "instantiateStreaming"].forEach(function (name) {
      var real = WebAssembly[name];
      if (!real) return;
      WebAssembly[name] = function (source, given) {
        if (imports) return real.call(WebAssembly, source, given);
        imports = given;
        return real.call(WebAssembly, source, Object.assign({ rest: stubs }, given)).then(function (made) {
          first = (made.instance || made).exports;
          // A link may ask for anything: both halves are there before it is read.
          if (location.hash.length > 1) return load().then(function () { return made; });
          addEventListener("vram-budget:started", function () {
            requestAnimationFrame(function () {
              setTimeout(loadInTime);
            });
          });
          return made;
        });
      };
    });
  }
  // The rest did not come when it was needed, and the program stands where it called it.
  function broken(error) {
    document.getElementById("panic-link").textContent = location.href;
    document.getElementById("panic-message").textContent = String(error);
    document.getElementById("panic-again").href = location.href;
    document.getElementById("app").inert = true;
    document.getElementById("panic").hidden = false;
  }
  setTimeout(function () {
    failed("it has not started after 20 seconds");
  }, 20000);

  var tag = document.querySelector("script[data-js]");
  try {
    if (tag) {
      var at = function (name) {
        return new URL(tag.getAttribute(name), document.baseURI).href;
      };
      if (tag.hasAttribute("data-rest")) inTwoHalves(at("data-rest"));
      import(at("data-js"))
        .then(function (glue) {
          return glue.default({ module_or_path: at("data-wasm") });
        })
        .catch(failed);
    } else {
      // The single file: the program is in the page.
      var text = atob(document.getElementById("wasm").textContent.trim());
      var bytes = new Uint8Array(text.length);
      for (var i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
      wasm_bindgen({ module_or_path: bytes }).catch(failed);
    }
  } catch (error) {
    failed(error);
  }
})();
