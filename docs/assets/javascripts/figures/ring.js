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

  function draw(result, { ranks, step, megabytes, bandwidth }, words) {
    // A column for each rank, a row for each chunk. The picture is as high for 2 ranks as for 8.
    const [left, top, bottom, columns] = [74, 26, 250, 364];
    const [across, down] = [columns / ranks, Math.min(56, (bottom - top) / ranks)];
    const [width, height] = [across - 14, down - 6];
    const x = (rank) => left + rank * across;
    const y = (chunk) => top + chunk * down;
    const long = ranks < 7; // there is room on a phone, too
    const parts = long ? [] : [`<text x="0" y="15.5">rank</text>`];
    result.holds.forEach((chunks, rank) => {
      const head = `x="${x(rank) - 6}" y="2" width="${across - 2}" height="18" rx="3"`;
      parts.push(
        `<rect class="fig-rank${rank}" ${head}/><text class="fig-on" x="${x(rank) + width / 2}" y="15.5" text-anchor="middle">${long ? `rank ${rank}` : rank}</text>`,
      );
      chunks.forEach((owners, chunk) => {
        const slice = width / ranks;
        for (const owner of owners) {
          const place = `x="${x(rank) + owner * slice}" y="${y(chunk)}" width="${slice}"`;
          parts.push(`<rect class="fig-rank${owner}" ${place} height="${height}"/>`);
        }
        const frame = result.arrived[rank] === chunk ? "fig-arrived" : "fig-frame";
        const box = `x="${x(rank)}" y="${y(chunk)}" width="${width}" height="${height}"`;
        parts.push(`<rect class="${frame}" ${box}/>`);
        if (frame === "fig-frame") return;
        const middle = y(chunk) + height / 2;
        // Into rank 0 from the last rank, around the others.
        const back = `M${x(ranks) - 13} ${middle}h7V${y(ranks) + 4}H${left - 12}V${middle}h10`;
        const way = rank === 0 ? back : `M${x(rank) - 13} ${middle}h11`;
        parts.push(`<path class="fig-arrow" d="${way}m-4 -3l4 3l-4 3"/>`);
      });
    });
    for (const chunk of range(ranks)) {
      const place = `x="0" y="${y(chunk) + height / 2 + 4}"`;
      parts.push(`<text ${place}>${fill(words.chunk, { chunk })}</text>`);
    }

    const values = { step, steps: result.steps, now: rounded(result.now), megabytes, bandwidth };
    for (const way of ["ring", "all", "server"]) {
      values[way] = rounded(result.sent[way]);
      values[`${way}Time`] = rounded(1000 * result.seconds[way]);
    }
    let phase = "begin";
    if (step > 0) phase = step < ranks ? "reduce" : "gather";
    if (step === result.steps) phase = "end";
    const short = fill(words[phase], values);
    return {
      picture: `<svg viewBox="0 0 440 260" role="img" aria-label="${short}">${parts.join("")}</svg>`,
      sentence: `${short}<small>${fill(words.cost, values)}</small>`,
      short,
    };
  }

  figures.ring = {
    fields: [
      { name: "ranks", min: 2, max: 8, value: 4 },
      {
        name: "step",
        min: 0,
        max: 14,
        value: 0,
        buttons: true,
        limit: ({ ranks }) => 2 * (ranks - 1),
      },
      { name: "megabytes", min: 1, max: 100000, value: 102, typed: true, any: true },
      { name: "bandwidth", min: 0.1, max: 1000, value: 25, typed: true, any: true },
    ],
    presets: { start: {} },
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
        chunk: "chunk {chunk}",
        begin:
          "Each rank has its own values, in one colour and as many chunks as there are ranks. In the end each chunk has all colours, everywhere.",
        reduce:
          "Step {step} of {steps}, reduce-scatter: what arrives (arrow) is added to the rank's own chunk.",
        gather:
          "Step {step} of {steps}, all-gather: a finished sum arrives and replaces the chunk.",
        end: "After {steps} steps every rank has every sum.",
        cost: "Each rank has sent <b>{now} MB</b> of <b>{ring} MB</b> ({ringTime} ms in all). If each sent all to all others: {all} MB, {allTime} ms. If one rank served all: {server} MB, {serverTime} ms.",
      },
      zh: {
        title: "一步一步看 all-reduce",
        fields: {
          ranks: "rank 数",
          step: "第几步",
          megabytes: "要求和的数据（MB）",
          bandwidth: "每条链路的带宽（GB/s）",
        },
        chunk: "第 {chunk} 段",
        begin:
          "开始时每个 rank 只有自己的数据，颜色各不相同，有几个 rank 就切成几段；最后每个 rank 的每一段都有全部颜色。",
        reduce:
          "共 {steps} 步，第 {step} 步，reduce-scatter：收到的一段（箭头）累加到本地对应的一段。",
        gather: "共 {steps} 步，第 {step} 步，all-gather：收到已经加完的一段，直接替换。",
        end: "{steps} 步之后，每个 rank 都有全部的和。",
        cost: "每个 rank 要发 <b>{ring} MB</b>（共 {ringTime} 毫秒），已发 <b>{now} MB</b>。若每个 rank 都发给其他所有 rank：{all} MB，{allTime} 毫秒；若由一个 rank 兼任参数服务器：{server} MB，{serverTime} 毫秒。",
      },
    },
  };
})();
