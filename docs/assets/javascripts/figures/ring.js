// An all-reduce, step by step: chunks on their way around a ring of ranks.
(() => {
  const { figures, range, fill, rounded } = globalThis.cookbook;

  // After so many steps: holds[rank][chunk] lists the ranks whose values are in that sum, arrived
  // [rank] is the chunk that the last step brought (from the rank before it), -1 before the first.
  function states(ranks, step) {
    const holds = range(ranks).map((rank) => range(ranks).map(() => [rank]));
    let arrived = range(ranks).map(() => -1);
    for (let now = 1; now <= step; now++) {
      const adds = now < ranks; // the reduce-scatter; after it the all-gather replaces
      const done = adds ? now : now - ranks;
      arrived = range(ranks).map((rank) => (rank - done + ranks) % ranks);
      const sent = arrived.map((chunk, rank) => holds[(rank - 1 + ranks) % ranks][chunk]);
      for (const rank of range(ranks)) {
        const own = adds ? holds[rank][arrived[rank]] : [];
        holds[rank][arrived[rank]] = [...own, ...sent[rank]];
      }
    }
    return { holds, arrived };
  }

  // Bytes are megabytes that the busiest rank sends; seconds if a link carries so many GB/s each way.
  function compute({ ranks, step, megabytes, bandwidth }) {
    const others = ranks - 1;
    const sent = { ring: (2 * others * megabytes) / ranks, all: others * megabytes };
    // A server gets all gradients through its own link, then sends all sums.
    const seconds = { ring: sent.ring, all: sent.all, server: 2 * others * megabytes };
    for (const way of Object.keys(seconds)) seconds[way] /= 1000 * bandwidth;
    return {
      ...states(ranks, step),
      steps: 2 * others,
      now: (step * megabytes) / ranks,
      sent: { ...sent, server: others * megabytes },
      seconds,
    };
  }

  const COLOURS = [
    "#3f8fd2",
    "#2f9e6e",
    "#d2603f",
    "#b08a2e",
    "#8a63c9",
    "#c9569b",
    "#5aa9a9",
    "#8a8a3f",
  ];

  function draw(result, { ranks, step, megabytes, bandwidth }, words) {
    const [width, height, top] = [424 / ranks, 22, 24];
    const parts = [];
    result.holds.forEach((chunks, rank) => {
      const x = 14 + rank * width;
      const middle = x + (width - 12) / 2;
      parts.push(`<text x="${middle}" y="16" text-anchor="middle">rank ${rank}</text>`);
      chunks.forEach((owners, chunk) => {
        const y = top + chunk * (height + 6);
        const slice = (width - 12) / ranks;
        for (const owner of owners) {
          const place = `x="${x + owner * slice}" y="${y}" width="${slice}" height="${height}"`;
          parts.push(`<rect ${place} fill="${COLOURS[owner]}"/>`);
        }
        const frame = result.arrived[rank] === chunk ? "fig-arrived" : "fig-frame";
        const box = `x="${x}" y="${y}" width="${width - 12}" height="${height}"`;
        parts.push(`<rect class="${frame}" ${box}/>`);
        if (frame === "fig-arrived") {
          const arrow = `M${x - 12} ${y + height / 2}h10m-5 -4l5 4l-5 4`;
          parts.push(`<path class="fig-arrived" d="${arrow}"/>`);
        }
      });
    });

    const values = { step, steps: result.steps, now: rounded(result.now), megabytes, bandwidth };
    for (const way of ["ring", "all", "server"]) {
      values[way] = rounded(result.sent[way]);
      values[`${way}Time`] = rounded(1000 * result.seconds[way]);
    }
    let phase = "begin";
    if (step > 0) phase = step < ranks ? "reduce" : "gather";
    if (step === result.steps) phase = "end";
    const size = `viewBox="0 0 440 ${top + ranks * (height + 6)}"`;
    return {
      picture: `<svg ${size} role="img" aria-label="${fill(words[phase], values)}">${parts.join("")}</svg>`,
      sentence: `${fill(words[phase], values)} ${fill(words.cost, values)}`,
    };
  }

  figures.ring = {
    fields: [
      { name: "ranks", min: 2, max: 8, value: 4 },
      { name: "step", min: 0, max: 14, value: 2, buttons: true },
      { name: "megabytes", min: 1, max: 100000, value: 102, typed: true, any: true },
      { name: "bandwidth", min: 0.1, max: 1000, value: 25, typed: true, any: true },
    ],
    presets: { start: {} },
    limit(state) {
      state.step = Math.min(state.step, 2 * (state.ranks - 1));
    },
    compute,
    draw,
    words: {
      en: {
        title: "An all-reduce, step by step",
        fields: {
          ranks: "ranks",
          step: "step",
          megabytes: "megabytes to add up",
          bandwidth: "GB/s of a link",
        },
        begin:
          "Each rank has its own values, in as many chunks as there are ranks (a colour for each rank).",
        reduce:
          "Step {step} of {steps}, reduce-scatter: what arrives (arrow) is added to the rank's own chunk; the colours say whose values are in it.",
        gather:
          "Step {step} of {steps}, all-gather: a finished sum arrives and replaces the chunk.",
        end: "After {steps} steps every rank has every sum.",
        cost: "So far each rank has sent <b>{now} MB</b>. To the end it is <b>{ring} MB</b> by the ring ({ringTime} ms), {all} MB if each sends all to all others ({allTime} ms), and {server} MB by one rank that serves all others, which receives as much ({serverTime} ms).",
      },
      zh: {
        title: "一步一步看 all-reduce",
        fields: {
          ranks: "rank 数",
          step: "第几步",
          megabytes: "要求和的数据（MB）",
          bandwidth: "每条链路的带宽（GB/s）",
        },
        begin: "开始时每个 rank 只有自己的数据，有几个 rank 就切成几段（每个 rank 一种颜色）。",
        reduce:
          "共 {steps} 步，第 {step} 步，reduce-scatter：收到的一段（箭头）累加到本地对应的一段，颜色表示其中有哪些 rank 的数据。",
        gather: "共 {steps} 步，第 {step} 步，all-gather：收到已经加完的一段，直接替换。",
        end: "{steps} 步之后，每个 rank 都有全部的和。",
        cost: "到现在每个 rank 发出了 <b>{now} MB</b>。全部做完，用环，每个 rank 发 <b>{ring} MB</b>（{ringTime} 毫秒）；每个 rank 都发给其他所有 rank，要发 {all} MB（{allTime} 毫秒）；由其中一个 rank 兼任参数服务器，它要发 {server} MB，还要收同样多（{serverTime} 毫秒）。",
      },
    },
  };
})();
