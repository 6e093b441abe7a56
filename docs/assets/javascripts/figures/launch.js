// What do I type? From a single-GPU script's numbers to those of a cluster, and the launch lines.
(() => {
  const { figures, fill, rounded, range } = globalThis.cookbook;
  const IMAGENET = 1281167;
  const KEPT = 8192; // images a step: as far as Goyal et al. 2017 (arXiv:1706.02677) kept the accuracy

  // peak: the learning rate after the warm-up. flag: what --lr must be, which is for 256 images.
  function compute({ gpus, machines, images, batch, lr, workers }) {
    const ranks = gpus * machines;
    const globalBatch = ranks * images;
    const bytes = images * 3 * 224 * 224; // of a batch, as uint8
    return {
      ranks,
      globalBatch,
      steps: Math.floor(IMAGENET / globalBatch),
      ours: (0.1 * globalBatch) / 256,
      linear: (lr * globalBatch) / batch,
      flag: (lr * 256) / batch,
      gigabytes: (gpus * workers * 2 * bytes) / 1e9, // each worker loads 2 batches ahead
    };
  }

  function lines({ gpus, machines, workers }, { ranks, globalBatch, flag }) {
    const main = (chapter) =>
      `${chapter}/main.py --data /imagenet --batch-size ${globalBatch} --lr ${Number(flag.toPrecision(4))}`;
    const several = machines > 1;
    const hosts = range(machines).map((number) => `host${number + 1}:${gpus}`);
    const meet = `--nnodes ${machines} --nproc-per-node ${gpus} --rdzv-backend c10d --rdzv-endpoint host1:29400`;
    const join = ` --nnodes ${machines} --node-rank 0 --master-addr host1 --master-port 29500`;
    return {
      torchrun: `torchrun ${several ? meet : `--standalone --nproc-per-node ${gpus}`} ${main("02_distributed")}`,
      "mp.spawn": `python ${main("03_multiprocessing")} --nprocs ${gpus}${several ? join : ""}`,
      srun: `srun -K --nodes ${machines} --ntasks-per-node ${gpus} --gres gpu:${gpus} --cpus-per-task ${Math.max(1, workers)} python ${main("06_slurm")}`,
      horovodrun: `horovodrun -np ${ranks} -H ${several ? hosts.join(",") : `localhost:${gpus}`} --gloo python ${main("05_horovod")}`,
    };
  }

  function draw(result, state, words) {
    // A line breaks before a flag or a word and between hosts, not inside them.
    const broken = (line) => line.replace(/(-[^ ]+ (?!-))?[^ ,]+[ ,]?/g, "<span>$&</span><wbr>");
    const rows = Object.entries(lines(state, result)).map(
      ([name, line]) =>
        `<dt>${name}<button type="button" data-clipboard-text="${line}" aria-label="${words.copy} ${name}">${words.copy}</button></dt><dd><code>${broken(line)}</code></dd>`,
    );
    const values = { ...result, steps: result.steps.toLocaleString("en") };
    for (const name of ["ours", "linear", "flag", "gigabytes"])
      values[name] = rounded(result[name]);
    const sentences = [fill(words.numbers, values), fill(words.rate, values)];
    if (result.globalBatch > KEPT) sentences.push(`<b>${fill(words.far, values)}</b>`);
    if (result.steps < 1) sentences.push(`<b>${words.none}</b>`);
    if (state.machines > 1) sentences.push(words.each);
    return {
      picture: `<dl class="fig-lines">${rows.join("\n")}</dl>`,
      sentence: sentences.join(" "),
      short: sentences[0],
    };
  }

  figures.launch = {
    formFirst: true,
    fields: [
      { name: "gpus", min: 1, max: 16, value: 8 },
      { name: "machines", min: 1, max: 64, value: 1 },
      { name: "images", min: 1, max: 1024, value: 32 },
      { name: "batch", min: 1, max: 1e6, value: 64, typed: true },
      { name: "lr", min: 1e-6, max: 100, value: 0.025, typed: true, any: true },
      { name: "workers", min: 0, max: 64, value: 8 },
    ],
    presets: { start: {} },
    compute,
    lines,
    draw,
    words: {
      en: {
        title: "What do I type?",
        copy: "copy",
        fields: {
          gpus: "GPUs per machine",
          machines: "machines",
          images: "images per GPU",
          batch: "batch of your single-GPU script",
          lr: "its learning rate",
          workers: "workers per GPU",
        },
        numbers:
          "<b>{ranks} ranks, {globalBatch} images a step</b> (<code>--batch-size</code> is for all ranks together), {steps} full steps for an epoch of ImageNet; the loaders keep up to {gigabytes} GB a machine, two batches for each worker.",
        rate: "The linear rule makes your rate <b>{linear}</b>. <code>--lr</code> is the rate for 256 images, and the program scales it to the batch: so it is <code>--lr {flag}</code>. Without it the rate would be {ours}.",
        far: "{globalBatch} images are more than the 8192 up to which Goyal et al. kept ResNet-50's accuracy: use fewer, or another optimizer.",
        none: "A step would need more images than ImageNet has.",
        each: "torchrun and mp.spawn are typed on each machine, mp.spawn with <code>--node-rank</code> 0, 1 and so on; srun and horovodrun once.",
      },
      zh: {
        title: "命令怎么写？",
        copy: "复制",
        fields: {
          gpus: "每台机器的显卡数",
          machines: "机器数",
          images: "每张卡的图片数",
          batch: "你的单卡脚本的 batch",
          lr: "单卡学习率",
          workers: "每张卡的 worker 数",
        },
        numbers:
          "<b>{ranks} 个 rank，每步 {globalBatch} 张图片</b>（<code>--batch-size</code> 是所有 rank 的总数），ImageNet 一个 epoch 有 {steps} 个完整的步；每台机器的 DataLoader 最多占 {gigabytes} GB 内存，每个 worker 两个 batch。",
        rate: "按线性规则，学习率应为 <b>{linear}</b>。<code>--lr</code> 填 256 张图片对应的值，程序会按总 batch 缩放，所以写 <code>--lr {flag}</code>；不写就用默认值，学习率是 {ours}。",
        far: "{globalBatch} 张超过了 8192 张，Goyal 等人的 ResNet-50 到这里为止准确率不降：请减小，或者换优化器。",
        none: "一步需要的图片比整个 ImageNet 还多。",
        each: "torchrun 和 mp.spawn 在每台机器上都要运行，mp.spawn 的 <code>--node-rank</code> 依次是 0、1……；srun 和 horovodrun 只运行一次。",
      },
    },
  };
})();
