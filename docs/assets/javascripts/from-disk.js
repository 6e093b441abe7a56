// A copy of the site that is opened from disk. A browser starts no worker there, nor reads a file
// that is no script: the worker of the search runs in an empty frame.
window.IFrameWorker = window.Worker = class extends EventTarget {
  constructor(address) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    const scope = frame.contentWindow;
    const load = (src) =>
      new Promise((resolve) => {
        const script = scope.document.createElement("script");
        scope.document.body.append(Object.assign(script, { src, onload: resolve }));
      });
    scope.importScripts = async (...all) => {
      for (const one of all) await load(one);
    };
    scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    const loaded = load(address);
    this.postMessage = async (data) => {
      await loaded;
      scope.dispatchEvent(new MessageEvent("message", { data }));
    };
  }
};
