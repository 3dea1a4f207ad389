//! The server in this process: its router and its lines of standard input, before an owner of the engine.

use crate::engine::Engine;
use counterfoil::native;
use counterfoil::serving::describe;
use counterfoil::tools::REGISTRY;
use counterfoil_server::connections::connection;
use counterfoil_server::http::{Gate, MOST_LARGE, router};
use counterfoil_server::mcp::Tools;
use counterfoil_server::metrics::Metrics;
use counterfoil_server::owner::{Callers, Instance, Owner};
use counterfoil_server::stdio;
use counterfoil_server::stop::Stop;
use counterfoil_server::tokens::Tokens;
use host_example::types::{Refusal, State};
use host_example::{Description, Invocation, Principal, Reply};
use std::env;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::{fs, process};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use uuid::Uuid;

/// A token with all permissions, and one with none.
pub const TOKENS: [&str; 2] = [
    "counterfoil_0000000000000000000000000000000000000000000000000000000000000000",
    "counterfoil_ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
];

/// What it holds otherwise. (`printf %s TOKEN | sha256sum`)
const LISTED: &str = r#"
[[token]]
name = "all"
sha256 = "23c87296d316f23ac3df625cd9e6406fe7b9182d63a5de9fe5ceb6356309a625"
subject = "ada"
workspace = "acme"
permissions = ["read", "write-notes", "write-automations", "deploy", "read-metrics"]

[[token]]
name = "none"
sha256 = "320ef77d35018c50fb366727027c40cd4d5bd22eb6f54be01431fa1bbdf9d38c"
subject = "bo"
workspace = "acme"
permissions = []
"#;

/// What is in hand between the two ends of a connection.
const BUFFER: usize = 64 << 10;

pub struct Server {
    owner: Arc<Owner<Native>>,
    tools: Tools<Native>,
    router: axum::Router,
    file: PathBuf,
}

static SERVER: LazyLock<Server> = LazyLock::new(Server::start);

impl Server {
    #[expect(clippy::unwrap_used, reason = "what is written here is right")]
    fn start() -> Server {
        let metrics = Arc::new(Metrics::of_owner());
        let (owner, _) = Owner::start(64, Arc::clone(&metrics), |callers| Ok(Native::new(callers))).unwrap();
        let owner = Arc::new(owner);
        let make = |principal| {
            Tools::new(
                Arc::clone(&owner),
                Arc::clone(&metrics),
                describe(&REGISTRY).into_iter().map(description).collect(),
                principal,
            )
            .unwrap()
        };
        let permissions = ["read", "write-notes", "write-automations", "deploy"].map(str::to_owned).to_vec();
        let ada = Principal { workspace: "acme".to_owned(), subject: "ada".to_owned(), permissions };
        let file = env::temp_dir().join(format!("counterfoil-fuzz-{}.toml", process::id()));
        fs::write(&file, LISTED).unwrap();
        let gate = Gate {
            metrics: Arc::clone(&metrics),
            tokens: Tokens::load(file.clone()).unwrap(),
            url: "http://127.0.0.1:8080/mcp".parse().unwrap(),
            origins: vec!["https://agents.example".to_owned()],
            large: Semaphore::new(MOST_LARGE),
        };
        Server { router: router(gate, make(None)), tools: make(Some(ada)), owner, file }
    }
}

/// What a connection answers to these bytes, until it is closed; and how many calls reached the engine.
pub fn http(bytes: &[u8]) -> (Vec<u8>, u64) {
    over(bytes, |stream| async move {
        // That the connection broke is no fault of the server's.
        drop(connection(stream, SERVER.router.clone()).await);
    })
}

/// What is answered to these lines; and how many calls reached the engine.
pub fn lines(bytes: &[u8]) -> (Vec<u8>, u64) {
    over(bytes, |stream| async move {
        let (input, output) = split(stream);
        // An input that is no beginning ends it.
        drop(stdio::serve(SERVER.tools.clone(), Stop::default(), input, output).await);
    })
}

/// With other text in the file of tokens, which is handed to the work. One at a time.
pub fn with_tokens<T>(text: &[u8], work: impl FnOnce(&PathBuf) -> T) -> T {
    let file = &SERVER.file;
    let written = fs::write(file, text);
    let done = work(file);
    let again = fs::write(file, LISTED);
    assert!(written.and(again).is_ok(), "{} cannot be written", file.display());
    done
}

#[expect(clippy::expect_used, reason = "a runtime takes no more than memory")]
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("a runtime")
}

fn over<F: Future<Output = ()> + Send + 'static>(
    bytes: &[u8],
    serve: impl FnOnce(DuplexStream) -> F,
) -> (Vec<u8>, u64) {
    runtime().block_on(async {
        let (ours, theirs) = duplex(BUFFER);
        let serving = tokio::spawn(serve(theirs));
        let (mut from, mut to) = split(ours);
        let mut answers = Vec::new();
        let (_, read) = tokio::join!(
            async {
                // It may have been closed early.
                drop(to.write_all(bytes).await);
                drop(to.shutdown().await);
            },
            from.read_to_end(&mut answers)
        );
        assert!(read.is_ok(), "{read:?}");
        let served = serving.await;
        assert!(served.is_ok(), "{served:?}");
        let calls = SERVER.owner.run("maintain", |native| Ok(Ok(native.end()))).await;
        (answers, calls.unwrap_or_else(|error| panic!("{error}")))
    })
}

/// The engine, as the owner wants it.
pub struct Native {
    /// None while it is made anew.
    engine: Option<Engine>,
    callers: Callers,
    calls: u64,
}

impl Native {
    fn new(callers: Callers) -> Native {
        Native { engine: Some(Engine::new()), callers, calls: 0 }
    }

    /// Checks the database and begins with a new one; says how many calls there were.
    fn end(&mut self) -> u64 {
        let calls = std::mem::take(&mut self.calls);
        if calls > 0
            && let Some(mut engine) = self.engine.take()
        {
            engine.assert_whole();
            drop(engine);
            self.engine = Some(Engine::new());
        }
        calls
    }
}

impl Instance for Native {
    fn attempt(&mut self, calls: &[Invocation], _: &[Uuid]) -> wasmtime::Result<Vec<Reply>> {
        self.calls += calls.len() as u64;
        let call = |(number, call): (u32, &Invocation)| {
            let caller = self.callers.get(number).map(|Principal { workspace, subject, permissions }| {
                counterfoil::Principal { workspace, subject, permissions }
            });
            (caller, native::Invocation { tool: call.tool.clone(), arguments: call.arguments.clone() })
        };
        let calls: Vec<_> = (0..).zip(calls).map(call).collect();
        let replies = self.engine.as_mut().map(|engine| engine.call(&calls)).unwrap_or_default();
        Ok(replies.into_iter().map(|native::Reply { body, refused }| Reply { body, refused }).collect())
    }

    fn is_spent(&self) -> bool {
        false
    }

    /// Nobody looks at the figures.
    fn count_operations(&mut self) -> wasmtime::Result<Result<Vec<(State, u64)>, Refusal>> {
        Ok(Ok(Vec::new()))
    }

    fn close(&mut self) -> wasmtime::Result<Result<(), Refusal>> {
        Ok(Ok(()))
    }
}

fn description(tool: counterfoil::serving::bindings::exports::counterfoil::tools::toolbox::Description) -> Description {
    Description {
        name: tool.name,
        title: tool.title,
        description: tool.description,
        input_schema: tool.input_schema,
        output_schema: tool.output_schema,
        permission: tool.permission,
        read_only: tool.read_only,
        destructive: tool.destructive,
        idempotent: tool.idempotent,
        open_world: tool.open_world,
    }
}
