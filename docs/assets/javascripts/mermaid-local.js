// Material fetches mermaid from a CDN unless something of that name is there. This stands in for it
// and loads our copy, 3.5 MB, when the first diagram of a page is to be drawn.
(() => {
  const source = new URL("mermaid.min.js", document.currentScript.src);
  let settings = {};
  let loaded = null;

  function load() {
    loaded ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = source;
      script.onload = () => {
        // Diagrams are in a closed shadow root, where the site's style sheet cannot reach, and
        // Material's rules miss some parts of sequence diagrams: they stay as for white paper.
        const ours = `
          marker path, marker polygon {
            fill: var(--md-mermaid-edge-color) !important;
            stroke: var(--md-mermaid-edge-color) !important;
          }
          .actor-line { stroke: var(--md-default-fg-color--lighter) !important; }
          .messageText { paint-order: stroke; stroke: var(--md-default-bg-color) !important; stroke-width: 5px; }
        `;
        globalThis.mermaid.initialize({ ...settings, themeCSS: (settings.themeCSS ?? "") + ours });
        resolve(globalThis.mermaid);
      };
      script.onerror = () => reject(new Error(`cannot load ${source}`));
      document.head.append(script);
    });
    return loaded;
  }

  globalThis.mermaid = {
    initialize(given) {
      settings = given;
    },
    // On a phone a wide diagram is scrolled to the side: shrunk to fit, no one could read it.
    async render(...args) {
      const drawn = await (await load()).render(...args);
      const least = (all, width) => `${all}; min-width: ${Math.round(0.62 * width)}px`;
      return { ...drawn, svg: drawn.svg.replace(/max-width: ([\d.]+)px/, least) };
    },
  };
})();
