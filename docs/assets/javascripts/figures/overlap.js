// Does communication hide? The timeline of a step, by the formulas of tools/site/scaling_model.py.
(() => {
  const { figures, range, fill, rounded } = globalThis.cookbook;
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
  // model than ResNet-50 follows from its operations; `own` has a hundred equal layers.
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
    return { micro, forward, total, buckets, step, efficiency: total / step };
  }

  function draw(result, state, words) {
    const { micro, forward, total, buckets, step } = result;
    const [left, width] = [2, 420];
    const at = (seconds) => Number((left + (width * seconds) / step).toFixed(1));
    const bar = (from, to, y, kind) => {
      const place = `x="${at(from)}" y="${y}" width="${(at(to) - at(from)).toFixed(1)}"`;
      return `<rect class="fig-${kind}" ${place} height="26"/>`;
    };
    const parts = [];
    for (const index of range(state.accumulate)) {
      const start = index * micro;
      parts.push(bar(start, start + forward, 24, "forward"));
      if (index < state.accumulate - 1)
        parts.push(bar(start + forward, start + micro, 24, "backward"));
    }
    let begin = total - micro + forward;
    for (const { ready, begin: sent, end } of buckets) {
      parts.push(bar(begin, ready, 24, "backward"), bar(sent, end, 78, "sent"));
      begin = ready;
    }
    parts.push(`<rect class="fig-optimizer" x="${at(step)}" y="24" width="10" height="80"/>`);
    if (step > total) parts.push(`<path class="fig-arrived" d="M${at(total)} 54H${at(step)}"/>`);

    const legend = ["forward", "backward", "sent", "waiting", "optimizer"].map((kind, index) => {
      const [x, y] = [left + (index % 3) * 140, 122 + 22 * Math.floor(index / 3)];
      const sign = `<rect class="fig-${kind}" x="${x}" y="${y}" width="14" height="14"/>`;
      return `${sign}<text x="${x + 18}" y="${y + 12}">${words[kind]}</text>`;
    });
    const heads = `<text x="${left}" y="16">${words.gpu}</text><text x="${left}" y="70">${words.network}</text>`;
    const values = {
      milliseconds: rounded(1000 * step),
      efficiency: (100 * result.efficiency).toFixed(1),
      waiting: rounded(1000 * (step - total)),
      rate: rounded((state.gpus * state.images * state.accumulate) / step),
      count: buckets.length,
    };
    let kind = step > total * 1.001 ? "waits" : "hides";
    if (state.gpus === 1) kind = "alone";
    const sentence = fill(words[kind], values);
    const label = sentence.replace(/<[^>]*>/g, "");
    const drawn = [heads, ...parts, ...legend].join("");
    return {
      picture: `<svg viewBox="0 0 440 162" role="img" aria-label="${label}">${drawn}</svg>`,
      sentence,
    };
  }

  figures.overlap = {
    fields: [
      { name: "model", options: ["resnet18", "resnet50", "resnet152", "own"], value: "resnet50" },
      { name: "images", min: 1, max: 1024, value: 64 },
      { name: "gpus", min: 1, max: 1024, value: 16, typed: true },
      { name: "bandwidth", min: 0.1, max: 1000, value: 5, typed: true, any: true },
      { name: "bucket", min: 1, max: 200, value: 25 },
      { name: "accumulate", min: 1, max: 16, value: 1 },
      { name: "bf16", value: false },
      { name: "rate", min: 1, max: 1e6, value: 2500, typed: true, any: true },
      { name: "parameters", min: 0.1, max: 1e5, value: 100, typed: true, any: true },
    ],
    presets: { start: {} },
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
          rate: "images/s of a GPU alone (ResNet-50, or own model)",
          parameters: "own model: million parameters",
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
        alone:
          "One GPU has nothing to send: <b>{milliseconds} ms</b> a step, efficiency <b>{efficiency} %</b>, {rate} images/s.",
        hides:
          "All {count} all-reduces hide behind backward: <b>{milliseconds} ms</b> a step, efficiency <b>{efficiency} %</b>, {rate} images/s.",
        waits:
          "<b>{milliseconds} ms</b> a step, of which the GPU waits <b>{waiting} ms</b> for the link: efficiency <b>{efficiency} %</b>, {rate} images/s, {count} all-reduces.",
      },
      zh: {
        title: "通信藏得住吗？",
        fields: {
          model: "模型",
          images: "每张卡的图片数",
          gpus: "显卡数",
          bandwidth: "链路带宽（GB/s）",
          bucket: "<code>bucket_cap_mb</code>",
          accumulate: "梯度累积次数",
          bf16: "梯度用 bf16",
          rate: "单卡每秒图片数（ResNet-50 或自己的模型）",
          parameters: "自己的模型：参数量（百万）",
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
        alone:
          "单卡不需要通信：每步 <b>{milliseconds} 毫秒</b>，效率 <b>{efficiency} %</b>，每秒 {rate} 张图片。",
        hides:
          "{count} 次 all-reduce 全部藏在反向里：每步 <b>{milliseconds} 毫秒</b>，效率 <b>{efficiency} %</b>，每秒 {rate} 张图片。",
        waits:
          "每步 <b>{milliseconds} 毫秒</b>，其中显卡等网络 <b>{waiting} 毫秒</b>：效率 <b>{efficiency} %</b>，每秒 {rate} 张图片，{count} 次 all-reduce。",
      },
    },
  };
})();
