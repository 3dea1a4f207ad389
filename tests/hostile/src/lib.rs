//! A component that means harm. Each of its tools is one way to do it, with nothing of counterfoil in between; `answer` is the
//! exception.
#![cfg(target_family = "wasm")]

mod rest;

mod bindings {
    #![allow(unsafe_code, reason = "of generated code")]
    wit_bindgen::generate!({ path: "../../wit", world: "serving" });
}

use bindings::counterfoil::tools::caller;
use bindings::counterfoil::tools::storage::{self, Error, File, LockLevel, Part};
use bindings::exports::counterfoil::tools::toolbox::{Description, Guest, Invocation, Reply};
use std::hint::black_box;
use std::time::Duration;
use wasip2::cli::{stderr, stdout};
use wasip2::clocks::monotonic_clock;
use wasip2::io::poll::poll;

struct Component;

#[allow(unsafe_code, reason = "of generated code")]
mod export {
    use crate::bindings;
    bindings::export!(Component with_types_in bindings);
    use crate::Component;
}

impl Guest for Component {
    fn describe() -> Vec<Description> {
        Vec::new()
    }

    fn call(invocations: Vec<Invocation>) -> Vec<Reply> {
        match invocations[0].tool.as_str() {
            "long_reply" => vec![Reply { body: "x".repeat(20 << 20), refused: false }],
            "many_replies" => vec![answer(&"x".repeat(1 << 20)); 20],
            tool => vec![answer(&harm(tool))],
        }
    }
}

fn answer(text: &str) -> Reply {
    Reply { body: format!(r#"{{"status":"succeeded","text":"{text}"}}"#), refused: false }
}

/// What is beside the database is made like it, so that comes first.
fn open(part: Part) -> File {
    let database = File::open(Part::Database, true);
    let file = if part == Part::Database { database } else { File::open(part, true) };
    file.unwrap_or_else(|error| panic!("it does not open: {error}"))
}

/// Does what the tool's name says, as often as it is let.
fn harm(tool: &str) -> String {
    match tool {
        "answer" => "good".to_owned(),

        "compute" => loop {
            black_box(());
        },
        "sleep" => {
            std::thread::sleep(Duration::from_secs(1 << 30));
            "woken".to_owned()
        }
        "sleep_again" => loop {
            monotonic_clock::subscribe_duration(u64::MAX).block();
        },
        "sleep_until" => {
            monotonic_clock::subscribe_instant(u64::MAX).block();
            "woken".to_owned()
        }
        "poll_many" => {
            let timer = monotonic_clock::subscribe_duration(1_000_000);
            format!("{}", poll(&vec![&timer; 1_000_000]).len())
        }
        "poll_again" => {
            let timer = monotonic_clock::subscribe_duration(1_000_000);
            loop {
                black_box(poll(&[&timer; 500]));
            }
        }
        "recurse" => recurse(1).to_string(),
        "exit" => std::process::exit(0),

        "grow" => {
            while core::arch::wasm32::memory_grow::<0>(16) != usize::MAX {}
            panic!("no more memory")
        }
        "allocate" => {
            let mut all = Vec::new();
            loop {
                all.push(black_box(vec![1_u8; 1024]));
            }
        }
        "random" => format!("{}", wasip2::random::random::get_random_bytes(u64::MAX).len()),
        "random_again" => loop {
            black_box(wasip2::random::random::get_random_bytes(1 << 16));
        },
        "open" => {
            let mut all = Vec::new();
            loop {
                all.push(open(Part::Wal));
            }
        }
        "streams" => {
            let mut all = Vec::new();
            loop {
                all.push(stderr::get_stderr());
            }
        }
        "timers" => {
            let mut all = Vec::new();
            loop {
                all.push(monotonic_clock::subscribe_duration(1));
            }
        }

        "read_much" => format!("{:?}", open(Part::Database).read(0, u32::MAX).map(|bytes| bytes.len())),
        "read_far" => loop {
            black_box(open(Part::Database).read(u64::MAX, 16)).ok();
        },
        "read_beyond" => loop {
            black_box(open(Part::Database).read(1 << 50, 1 << 20)).ok();
        },
        "write_much" => format!("{:?}", open(Part::Database).write(0, &vec![1; 8 << 20])),
        "write_more" => format!("{:?}", open(Part::Database).write(0, &vec![1; 32 << 20])),
        "write_far" => loop {
            assert_eq!(open(Part::Database).write(1 << 62, b"far"), Err(Error::NoSpace));
        },
        "write_farthest" => loop {
            black_box(open(Part::Database).write(u64::MAX, b"far")).ok();
        },
        "fill" => {
            let (file, bytes) = (open(Part::Wal), vec![1; 1 << 20]);
            let mut end = 0;
            while file.write(end, &bytes).is_ok() {
                end += 1 << 20;
            }
            format!("{end} {:?}", file.set_size(0))
        }
        "write_again" => {
            let (file, bytes) = (open(Part::Wal), vec![1; 1 << 20]);
            loop {
                black_box(file.write(0, &bytes)).ok();
            }
        }
        "set_size" => match open(Part::Database).set_size(1 << 62) {
            Err(error) => error.name().to_owned(),
            Ok(()) => "done".to_owned(),
        },
        "set_size_again" => {
            let file = open(Part::Database);
            loop {
                black_box((file.set_size(1 << 20), file.set_size(0))).0.ok();
            }
        }
        "sync" => {
            let file = open(Part::Database);
            loop {
                black_box(file.write(0, b"again").and_then(|()| file.sync())).ok();
            }
        }
        "size" => {
            let file = open(Part::Database);
            loop {
                black_box(file.size()).ok();
            }
        }
        "exists" => loop {
            black_box(storage::exists(Part::Journal)).ok();
        },
        "remove" => loop {
            drop(open(Part::Journal));
            black_box(storage::remove(Part::Journal)).ok();
        },
        "remove_none" => loop {
            black_box(storage::remove(Part::Journal)).ok();
        },
        "sharing" => loop {
            black_box(storage::sharing_mode()).ok();
        },
        "lock" => {
            let file = open(Part::Database);
            loop {
                black_box((file.lock(LockLevel::Exclusive), file.unlock(LockLevel::Exclusive))).0.ok();
                black_box(file.unlock(LockLevel::None)).ok();
            }
        }
        "wait" => loop {
            black_box(storage::wait(u32::MAX));
        },

        "callers" => loop {
            assert!(black_box(caller::current(u32::MAX)).is_none());
        },
        "print" => loop {
            eprintln!("\x1b[2J\nerror: {}", "x".repeat(1000));
        },
        "print_out" => loop {
            println!("{}", "x".repeat(1000));
        },
        "zeroes" => loop {
            stdout::get_stdout().write_zeroes(u64::MAX).ok();
        },
        _ => panic!("no tool {tool}"),
    }
}

#[expect(unconditional_recursion, reason = "until the stack is gone")]
fn recurse(depth: u64) -> u64 {
    black_box(depth) + black_box(recurse(black_box(depth + 1)))
}
