//! The simulator's program; see [`netsim::cli`].

/// Runs allocate and free small things all the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    netsim::cli::main()
}
