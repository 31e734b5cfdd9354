// Sends the samples of the microphone to the page: blocks of 4096, the mean of all channels.
class Microphone extends AudioWorkletProcessor {
  constructor() {
    super();
    this.block = new Float32Array(4096);
    this.filled = 0;
  }

  process([channels]) {
    const length = channels[0]?.length ?? 0;
    for (let index = 0; index < length; index += 1) {
      let sum = 0;
      for (const channel of channels) sum += channel[index];
      this.block[this.filled] = sum / channels.length;
      this.filled += 1;
      if (this.filled === this.block.length) {
        this.port.postMessage(this.block);
        this.block = new Float32Array(4096);
        this.filled = 0;
      }
    }
    return true;
  }
}
registerProcessor("microphone", Microphone);
