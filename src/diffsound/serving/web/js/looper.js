// Gapless loops. A media element pauses for a moment before it starts again; a buffer source does not.

let context = null;

export class Looper {
  // buffer: an AudioBuffer; span: [start, end] in seconds; from: where to begin.
  constructor(buffer, [start, end], from, volume) {
    context ??= new AudioContext();
    context.resume();
    this.gain = context.createGain();
    this.gain.gain.value = volume;
    this.source = context.createBufferSource();
    Object.assign(this.source, { buffer, loop: true, loopStart: start, loopEnd: end });
    this.source.connect(this.gain).connect(context.destination);
    this.start = start;
    this.length = end - start;
    this.offset = Math.min(Math.max(from, start), end) - start;
    this.began = context.currentTime;
    this.source.start(0, start + this.offset);
  }

  get position() {
    return this.start + ((context.currentTime - this.began + this.offset) % this.length);
  }

  set volume(value) {
    this.gain.gain.value = value;
  }

  stop() {
    this.source.stop();
    this.gain.disconnect();
  }
}
