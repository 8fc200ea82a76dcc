//! The simulator's program; see [`netsim::cli`].

fn main() -> std::process::ExitCode {
    netsim::cli::main()
}
