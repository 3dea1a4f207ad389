//! The program `counterfoil`.

use std::process::ExitCode;

fn main() -> ExitCode {
    counterfoil_server::main()
}
