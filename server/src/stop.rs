//! How a process is asked to end: by SIGTERM or SIGINT. It finishes what it has in hand.

use std::io;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Linux's, on most machines (`man 7 signal`).
const SIGXFSZ: i32 = 25;

/// Turns true at the first signal. The second one ends the process at once: whoever asks twice leaves what is in hand, and it
/// is settled as if the process had been killed.
///
/// # Errors
///
/// If the system takes no handler.
pub fn on_signal() -> io::Result<Stop> {
    let stop = Arc::new(watch::Sender::new(false));
    let told = Arc::clone(&stop);
    // A file that may not grow is an error of the write, and not the end of the process.
    drop(signal(SignalKind::from_raw(SIGXFSZ))?);
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        told.send_replace(true);
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        std::process::exit(1);
    });
    Ok(Stop(stop))
}

/// Whether to stop, for whoever has to know.
#[derive(Clone, Default)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Stop {
    pub fn now(&self) {
        self.0.send_replace(true);
    }

    pub async fn wait(&self) {
        // It does not fail while the sender lives, which is here.
        drop(self.0.subscribe().wait_for(|stop| *stop).await);
    }
}
