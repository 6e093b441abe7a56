// Who gets which image? The shares of DistributedSampler, of our chapters' evaluation, of nobody.
(() => {
  const { figures, range, fill, plain } = globalThis.cookbook;

  // torch's random numbers on CPUs after manual_seed: MT19937 (Matsumoto and Nishimura 1998).
  function* mt19937(seed) {
    const state = new Uint32Array(624);
    state[0] = seed;
    for (let i = 1; i < 624; i++) {
      state[i] = Math.imul(1812433253, state[i - 1] ^ (state[i - 1] >>> 30)) + i;
    }
    for (;;) {
      for (let i = 0; i < 624; i++) {
        const y = (state[i] & 0x80000000) | (state[(i + 1) % 624] & 0x7fffffff);
        state[i] = state[(i + 397) % 624] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
      }
      for (let y of state) {
        y ^= y >>> 11;
        y ^= (y << 7) & 0x9d2c5680;
        y ^= (y << 15) & 0xefc60000;
        yield (y ^ (y >>> 18)) >>> 0;
      }
    }
  }

  // torch.randperm(count) of that generator.
  function shuffled(count, seed) {
    const order = range(count);
    const random = mt19937(seed);
    for (let i = 0; i < count - 1; i++) {
      const j = i + (random.next().value % (count - i));
      [order[i], order[j]] = [order[j], order[i]];
    }
    return order;
  }

  // What each rank's sampler gives, as torch.utils.data.DistributedSampler does it with seed 0.
  function ofRanks({ images, ranks, way, drop, setEpoch, epoch }) {
    if (way === "none") return range(ranks).map(() => shuffled(images, epoch));
    let order = range(images);
    if (way !== "exact") {
      const all = way === "sampler" ? shuffled(images, setEpoch ? epoch : 0) : order;
      const each = drop ? Math.floor(images / ranks) : Math.ceil(images / ranks);
      order = range(each * ranks).map((place) => all[place % images]); // padded by its beginning
    }
    return range(ranks).map((rank) => order.filter((_, place) => place % ranks === rank));
  }

  const isRight = (image) => image % 4 !== 0; // a fixed set of guesses, 0 is wrong

  // batches: of each rank, the images of each step. twice: how many are seen again by anybody.
  function compute(state) {
    const { images, batch, drop } = state;
    const batches = ofRanks(state).map((own) => {
      const cut = range(Math.ceil(own.length / batch)).map((step) =>
        own.slice(step * batch, (step + 1) * batch),
      );
      return drop ? cut.filter((some) => some.length === batch) : cut;
    });
    const seen = batches.flat(2);
    const count = range(images).map((image) => seen.filter((one) => one === image).length);
    const steps = batches.map((own) => own.length);
    return {
      batches,
      count,
      steps: Math.max(...steps),
      fewest: Math.min(...steps),
      twice: count.filter((times) => times > 1).length,
      never: range(images).filter((image) => count[image] === 0),
      reported: (100 * seen.filter(isRight).length) / seen.length,
      right: (100 * range(images).filter(isRight).length) / images,
    };
  }

  function draw(result, state, words) {
    const { batches, count, never } = result;
    const judged = state.way === "unshuffled" || state.way === "exact"; // as one evaluates
    const row = (head, steps, kind) => {
      const cell = (image) => {
        const kinds = [kind];
        if (count[image] > 1) kinds.push("fig-twice");
        if (judged && !isRight(image)) kinds.push("fig-wrong");
        return `<i class="${kinds.join(" ")}">${image}</i>`;
      };
      const cells = steps.map((some) => `<span>${some.map(cell).join("")}</span>`);
      return `<div><b class="${kind}">${head}</b><div>${cells.join("") || words.nothing}</div></div>`;
    };
    const rows = batches.map((own, rank) => row(`rank ${rank}`, own, `fig-rank${rank}`));
    if (never.length) rows.push(row(words.never, [never], "fig-never"));

    const values = { ...result, missing: never.length };
    values.reported = result.reported.toFixed(1);
    values.right = result.right.toFixed(1);
    const sentences = [fill(words.count, values)];
    if (result.steps !== result.fewest) sentences.push(fill(words.uneven, values));
    if (judged && Number.isFinite(result.reported)) sentences.push(fill(words.accuracy, values));
    if (state.way === "sampler" && !state.setEpoch && state.epoch > 0) sentences.push(words.same);
    const label = plain(sentences[0]);
    return {
      picture: `<div class="fig-shares" role="img" aria-label="${label}">${rows.join("\n")}</div>`,
      sentence: sentences.join(" "),
      short: sentences[0],
    };
  }

  figures.shares = {
    fields: [
      { name: "images", min: 7, max: 60, value: 19 },
      { name: "ranks", min: 1, max: 8, value: 4 },
      { name: "batch", min: 1, max: 8, value: 2 },
      { name: "way", options: ["sampler", "unshuffled", "exact", "none"], value: "sampler" },
      { name: "drop", value: false },
      { name: "setEpoch", value: true, when: ({ way }) => way === "sampler" },
      {
        name: "epoch",
        min: 0,
        max: 9,
        value: 0,
        when: ({ way }) => ["sampler", "none"].includes(way),
      },
    ],
    choices: { two: { with: "way=sampler", without: "way=none" } },
    presets: {
      training: { drop: "true" },
      evaluation: { images: "11", batch: "3", way: "unshuffled" },
      two: { images: "12", ranks: "2" },
    },
    compute,
    draw,
    words: {
      en: {
        title: "Who gets which image?",
        fields: {
          images: "images",
          ranks: "ranks",
          batch: "batch per rank",
          way: "who chooses",
          drop: "<code>drop_last</code>",
          setEpoch: "<code>set_epoch</code>",
          epoch: "epoch",
        },
        options: {
          sampler: "DistributedSampler",
          unshuffled: "DistributedSampler(shuffle=False)",
          exact: "exact, as our chapters evaluate",
          none: "no sampler",
        },
        choices: { with: "with a sampler", without: "forgotten" },
        never: "never",
        nothing: "no full batch",
        count:
          "Steps: <b>{steps}</b> (the groups in a row). Images that are seen more than once (framed): <b>{twice}</b>; never: <b>{missing}</b>.",
        uneven:
          "Some rank has only {fewest}: fine in our evaluation, but in training the others would wait for it for ever.",
        accuracy:
          "Evaluated so (underlined: guessed wrong), the accuracy is <b>{reported} %</b>; right is {right} %.",
        same: "Without <code>set_epoch</code> this is the order of epoch 0 again.",
      },
      zh: {
        title: "哪张图片分给谁？",
        fields: {
          images: "图片数",
          ranks: "rank 数",
          batch: "每个 rank 的 batch",
          way: "谁来分",
          drop: "<code>drop_last</code>",
          setEpoch: "<code>set_epoch</code>",
          epoch: "第几个 epoch",
        },
        options: {
          sampler: "DistributedSampler",
          unshuffled: "DistributedSampler(shuffle=False)",
          exact: "不重不漏（各章的评估）",
          none: "不用 sampler",
        },
        choices: { with: "用 sampler", without: "忘了用" },
        never: "没用到",
        nothing: "凑不满一个 batch",
        count:
          "共 <b>{steps} 步</b>（一行里每组是一步）。重复用到的图片（加框）：<b>{twice}</b> 张；一次也没用到的：<b>{missing}</b> 张。",
        uneven: "有的 rank 只有 {fewest} 步：我们的评估不受影响，但训练时其他 rank 会一直等它。",
        accuracy:
          "这样评估（带下划线的图片猜错了），算出的准确率是 <b>{reported}%</b>，真实值是 {right}%。",
        same: "没有调用 <code>set_epoch</code>，所以和第 0 个 epoch 的顺序一样。",
      },
    },
  };
})();
