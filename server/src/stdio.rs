//! Standard input and output, between an agent's host and the protocol: lines of bounded length, of which those that are no JSON
//! are answered here. (rmcp passes over them, and takes lines of any length.)

use crate::mcp::Tools;
use crate::owner::Instance;
use crate::stop::Stop;
use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use serde_json::Value;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, DuplexStream,
    WriteHalf, duplex, split,
};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// The most bytes of a line, as of a request over HTTP.
const MAX_LINE: usize = crate::http::MAX_REQUEST;

/// Which some hosts begin with.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// What is on its way between the two.
const BUFFER: usize = 64 << 10;

/// <https://www.jsonrpc.org/specification#error_object>; without an id, as the protocol has it where none is known.
const NO_JSON: &str = r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"This line is no JSON."}}"#;
const TOO_LONG: &str = r#"{"jsonrpc":"2.0","error":{"code":-32600,"message":"This line has more than 524288 bytes."}}"#;

/// How long the last answers of an agent may take, and its host to read them. A call has one in 4.5 s.
pub const LAST_ANSWERS: Duration = Duration::from_secs(6);

/// Serves until the input ends, or it is told to stop, which is taken for its end: what was read before is answered.
///
/// # Errors
///
/// If the input begins with what is no beginning.
pub async fn serve<I: Instance>(
    tools: Tools<I>,
    stop: Stop,
    input: impl AsyncRead + Unpin + Send + 'static,
    output: impl AsyncWrite + Unpin + Send + 'static,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let (transport, reading, written) = open(stop, input, output);
    let serving = async {
        let mut refused = None;
        match tools.serve(transport).await {
            Ok(service) => drop(service.waiting().await?),
            // Whoever looks whether the program starts says nothing.
            Err(ServerInitializeError::ConnectionClosed(_)) => {}
            Err(error) => refused = Some(error),
        }
        // Whoever has closed the output does not wait for answers.
        drop(written.await?);
        refused.map_or(Ok(()), |error| Err(error.into()))
    };
    let unread = async {
        drop(reading.await);
        sleep(LAST_ANSWERS).await;
    };
    tokio::select! {
        served = serving => served,
        () = unread => Ok(()),
    }
}

/// What the protocol reads and writes; what ends with the input; and what ends once all that the protocol wrote is written.
fn open(
    stop: Stop,
    input: impl AsyncRead + Unpin + Send + 'static,
    output: impl AsyncWrite + Unpin + Send + 'static,
) -> (DuplexStream, JoinHandle<()>, JoinHandle<io::Result<()>>) {
    let (ours, theirs) = duplex(BUFFER);
    let (from_protocol, mut to_protocol) = split(ours);
    let output = Arc::new(Mutex::new(output));
    let errors = Arc::clone(&output);
    let reading = tokio::spawn(async move {
        tokio::select! {
            _ = read(input, &mut to_protocol, &errors) => {}
            () = stop.wait() => {}
        }
        // The protocol takes it for the end of the input.
        drop(to_protocol.shutdown().await);
    });
    let written = tokio::spawn(async move {
        let mut lines = BufReader::new(from_protocol);
        let mut line = Vec::new();
        let mut written = Ok(());
        while lines.read_until(b'\n', &mut line).await? > 0 {
            // Where nobody takes answers any more they are dropped, lest they pile up.
            if written.is_ok() {
                written = write(&output, &line).await;
            }
            line.clear();
        }
        written
    });
    (theirs, reading, written)
}

/// Hands on each line that is JSON, also a last one without its end.
async fn read<O: AsyncWrite + Unpin>(
    input: impl AsyncRead + Unpin,
    to_protocol: &mut WriteHalf<DuplexStream>,
    output: &Mutex<O>,
) -> io::Result<()> {
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    loop {
        line.clear();
        let most = MAX_LINE as u64 + 1;
        if (&mut input).take(most).read_until(b'\n', &mut line).await? == 0 {
            return Ok(());
        }
        if line.len() > MAX_LINE {
            skip(&mut input, line.ends_with(b"\n")).await?;
            write(output, format!("{TOO_LONG}\n").as_bytes()).await?;
        } else if serde_json::from_slice::<Value>(line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&line)).is_ok() {
            if !line.ends_with(b"\n") {
                line.push(b'\n');
            }
            // Whoever does not read answers is not read from: they would have to be kept.
            drop(output.lock().await);
            to_protocol.write_all(&line).await?;
        } else if !line.trim_ascii().is_empty() {
            write(output, format!("{NO_JSON}\n").as_bytes()).await?;
        }
    }
}

/// The rest of a line that is too long, a part at a time.
async fn skip<I: AsyncBufRead + Unpin>(input: &mut I, mut is_over: bool) -> io::Result<()> {
    while !is_over {
        let part = input.fill_buf().await?;
        let end = part.iter().position(|byte| *byte == b'\n');
        is_over = end.is_some() || part.is_empty();
        let taken = end.map_or(part.len(), |end| end + 1);
        input.consume(taken);
    }
    Ok(())
}

/// A line at a time, whoever writes.
async fn write<O: AsyncWrite + Unpin>(output: &Mutex<O>, line: &[u8]) -> io::Result<()> {
    let mut output = output.lock().await;
    output.write_all(line).await?;
    output.flush().await
}
