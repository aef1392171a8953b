/* Search in pages that are opened from a folder.

   A browser starts no worker from file://. This one runs the worker's script in a hidden frame instead: slower to begin,
   and on the page's own thread. From a server the browser's own workers are used. */

class FrameWorker extends EventTarget {
  constructor(url) {
    super()
    const frame = document.createElement("iframe")
    frame.hidden = true
    frame.srcdoc = "<!doctype html>"
    this.started = new Promise((resolve) => {
      frame.onload = () => {
        const inside = frame.contentWindow
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
        const script = inside.document.createElement("script")
        script.onload = () => resolve(inside)
        script.src = new URL(url, document.baseURI).href
        inside.document.head.append(script)
      }
    })
    const append = () => document.body.append(frame)
    document.body ? append() : addEventListener("DOMContentLoaded", append)
  }

  postMessage(data) {
    this.started.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })))
  }

  terminate() {}
}

if (location.protocol === "file:") window.Worker = FrameWorker
