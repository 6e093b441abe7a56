// Does communication hide? The timeline of a step, by the formulas of tools/site/scaling_model.py.
(() => {
  const { figures, range, fill, rounded, plain } = globalThis.cookbook;
  const [LATENCY, LEAST, MIB] = [3.4e-6, 0.015, 2 ** 20];

  // All reduce of so many bytes, in seconds: NCCL takes the ring or the tree, as it expects.
  function allReduce(gpus, bytes, bandwidth) {
    if (gpus === 1) return 0;
    const ring = 2 * (gpus - 1) * LATENCY + (2 * (gpus - 1) * bytes) / gpus / bandwidth;
    const tree = 2 * Math.ceil(Math.log2(gpus)) * LATENCY + (2 * bytes) / bandwidth;
    return Math.min(ring, tree);
  }

  // As DDP fills its buckets: the first closes at 1 MiB, the others at the given size.
  function bucketsOf(gradients, megabytes) {
    const buckets = [];
    let [bytes, limit] = [0, Math.min(1, megabytes) * MIB];
    gradients.forEach(([size, share], index) => {
      bytes += size;
      if (bytes < limit && index < gradients.length - 1) return;
      buckets.push({ bytes, share });
      [bytes, limit] = [0, megabytes * MIB];
    });
    return buckets;
  }

  // Seconds: of a micro-batch, of each bucket's all-reduce, and of the step. The rate of another
  // model than ResNet-50 follows from its operations; `own` has a hundred equal layers. hidden is the
  // share of the all-reduces' time that lies beside backward.
  function compute(state) {
    const { model, images, gpus, bandwidth, bf16, accumulate, bucket } = state;
    const { models } = figures.overlap.data;
    let rate = state.rate;
    let gradients = range(100).map((n) => [state.parameters * 4e4, (n + 1) / 100]);
    if (model !== "own") {
      rate *= models.resnet50.operations / models[model].operations;
      gradients = models[model].gradients;
    }
    const micro = Math.max(images / rate, LEAST);
    const forward = micro / 3; // backward has twice the operations
    const before = (accumulate - 1) * micro + forward;
    const total = accumulate * micro;
    let end = 0;
    const buckets = bucketsOf(gradients, bucket).map(({ bytes, share }) => {
      const ready = before + (micro - forward) * share;
      const begin = Math.max(end, ready);
      end = begin + allReduce(gpus, bf16 ? bytes / 2 : bytes, bandwidth * 1e9);
      return { bytes, ready, begin, end };
    });
    const step = Math.max(total, end);
    const sum = (times) => times.reduce((one, other) => one + other, 0);
    const sent = sum(buckets.map(({ begin, end: done }) => done - begin));
    const beside = sum(
      buckets.map(({ begin, end: done }) => Math.min(done, total) - Math.min(begin, total)),
    );
    const hidden = sent ? beside / sent : 1;
    return { micro, forward, total, buckets, step, efficiency: total / step, hidden };
  }

  // The axis ends at the first tick beyond 1.2 times the step; there are four to nine.
  function scale(step) {
    const power = 10 ** Math.floor(Math.log10(0.3 * step));
    const tick = power * [5, 2, 1].find((times) => times * power <= 0.3 * step);
    return { tick, ticks: Math.ceil((1.2 * step) / tick - 1e-9) };
  }

  function draw(result, state, words) {
    const { micro, forward, total, buckets, step } = result;
    const { tick, ticks } = scale(step);
    const [left, top, width, high] = [46, 24, 376, 30];
    const x = (time) => left + (width * time) / (tick * ticks);
    const parts = [];
    const label = (text, x, y, more = "") =>
      parts.push(`<text x="${x}" y="${y}"${more}>${text}</text>`);
    const round = (number) => Number(number.toFixed(1));
    // A piece of time.
    function bar(from, to, line, kind) {
      const place = `x="${round(x(from))}" y="${top + line * high}" width="${round(x(to) - x(from))}"`;
      parts.push(`<rect class="fig-${kind}" ${place} height="${high}"/>`);
    }

    for (const part of range(ticks + 1)) {
      const at = round(x(part * tick));
      const milliseconds = rounded(1000 * tick * part);
      parts.push(`<path class="fig-frame" d="M${at} ${top - 4}V${top + 2 * high + 8}"/>`);
      if (part < ticks) label(milliseconds, at, top - 8, ' text-anchor="middle"');
      else label(`${milliseconds} ms`, 440, top - 8, ' text-anchor="end"');
    }
    for (const [line, name] of [words.gpu, words.network].entries())
      label(name, left - 6, top + (line + 0.5) * high + 4, ' text-anchor="end"');

    for (const index of range(state.accumulate)) {
      const start = index * micro;
      bar(start, start + forward, 0, "forward");
      if (index < state.accumulate - 1) bar(start + forward, start + micro, 0, "backward");
    }
    let begin = total - micro + forward;
    for (const { ready, begin: sent, end } of buckets) {
      bar(begin, ready, 0, "backward");
      bar(sent, end, 1, "sent");
      begin = ready;
    }
    if (step > total) bar(total, step, 0, "waiting");

    const values = {
      milliseconds: rounded(1000 * step),
      efficiency: (100 * result.efficiency).toFixed(1),
      hidden: (100 * result.hidden).toFixed(0),
      waiting: rounded(1000 * (step - total)),
      rate: rounded((state.gpus * state.images * state.accumulate) / step),
      count: buckets.length,
    };
    const end = round(x(step));
    parts.push(`<path class="fig-optimizer" d="M${end} ${top - 2}V${top + 2 * high + 5}"/>`);
    label(fill(words.step, values), end, top + 2 * high + 20, ' text-anchor="end"');

    const legend = ["forward", "backward", "sent", "waiting", "optimizer"].map((kind) => {
      const sign = `<svg viewBox="0 0 12 12"><rect class="fig-${kind}" width="12" height="12"/></svg>`;
      return `<span>${sign}${words[kind]}</span>`;
    });
    let kind = step > total * 1.001 ? "waits" : "hides";
    if (state.gpus === 1) kind = "alone";
    const short = fill(words[kind], values);
    const size = `viewBox="0 0 440 ${top + 2 * high + 24}"`;
    return {
      picture: `<svg ${size} role="img" aria-label="${plain(short)}">${parts.join("")}</svg><p class="fig-legend" aria-hidden="true">${legend.join(" ")}</p>`,
      sentence: `${short} ${fill(words.speed, values)}`,
      short,
    };
  }

  figures.overlap = {
    shown: ["gpus", "bandwidth", "bucket"], // the others are under "more"
    fields: [
      { name: "gpus", min: 1, max: 1024, value: 16, typed: true },
      { name: "bandwidth", min: 0.1, max: 1000, value: 5, typed: true, any: true },
      { name: "bucket", min: 1, max: 200, value: 25 },
      { name: "model", options: ["resnet18", "resnet50", "resnet152", "own"], value: "resnet50" },
      { name: "images", min: 1, max: 1024, value: 64 },
      { name: "accumulate", min: 1, max: 16, value: 1 },
      { name: "bf16", value: false },
      { name: "rate", min: 1, max: 1e6, value: 2500, typed: true, any: true },
      {
        name: "parameters",
        min: 0.1,
        max: 1e5,
        value: 100,
        typed: true,
        any: true,
        when: ({ model }) => model === "own",
      },
    ],
    presets: { start: {}, hidden: { bandwidth: "10" } },
    compute,
    draw,
    words: {
      en: {
        title: "Does communication hide?",
        fields: {
          model: "model",
          images: "images per GPU",
          gpus: "GPUs",
          bandwidth: "GB/s of the link",
          bucket: "<code>bucket_cap_mb</code>",
          accumulate: "micro-batches (accumulation)",
          bf16: "bf16 gradients",
          rate: "images/s of one GPU (ResNet-50 or own)",
          parameters: "million parameters",
        },
        options: {
          resnet18: "ResNet-18",
          resnet50: "ResNet-50",
          resnet152: "ResNet-152",
          own: "own",
        },
        gpu: "GPU",
        network: "link",
        forward: "forward",
        backward: "backward",
        sent: "all-reduce",
        waiting: "GPU waits",
        optimizer: "optimizer (takes no time here)",
        step: "one step: {milliseconds} ms",
        alone: "One GPU has nothing to send: <b>{milliseconds} ms</b> a step.",
        hides: "All-reduce hides behind backward: <b>{milliseconds} ms</b> a step.",
        waits:
          "<b>{milliseconds} ms</b> a step, of which the GPU waits <b>{waiting} ms</b> for the link; <b>{hidden} %</b> of the all-reduce time hides behind backward.",
        speed: "Efficiency <b>{efficiency} %</b>, {rate} images/s; {count} buckets.",
      },
      zh: {
        title: "通信能被掩盖吗？",
        fields: {
          model: "模型",
          images: "每张卡的图片数",
          gpus: "显卡数",
          bandwidth: "链路带宽（GB/s）",
          bucket: "<code>bucket_cap_mb</code>",
          accumulate: "梯度累积次数",
          bf16: "梯度用 bf16",
          rate: "单卡每秒图片数（ResNet-50 或自己的模型）",
          parameters: "参数量（百万）",
        },
        options: {
          resnet18: "ResNet-18",
          resnet50: "ResNet-50",
          resnet152: "ResNet-152",
          own: "自己的模型",
        },
        gpu: "显卡",
        network: "网络",
        forward: "前向",
        backward: "反向",
        sent: "all-reduce",
        waiting: "显卡等网络",
        optimizer: "优化器（这里不计时间）",
        step: "一步：{milliseconds} 毫秒",
        alone: "单卡不需要通信：每步 <b>{milliseconds} 毫秒</b>。",
        hides: "all-reduce 全部被反向掩盖：每步 <b>{milliseconds} 毫秒</b>。",
        waits:
          "每步 <b>{milliseconds} 毫秒</b>，其中显卡等网络 <b>{waiting} 毫秒</b>；all-reduce 的时间有 <b>{hidden}%</b> 被反向掩盖。",
        speed: "效率 <b>{efficiency}%</b>，每秒 {rate} 张图片，{count} 个桶。",
      },
    },
  };
})();
