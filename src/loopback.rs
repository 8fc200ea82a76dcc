//! Loopback addresses for nodes that must know each other's before any of them runs: what the demo,
//! the benches and the tests set up.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ports a system gives out by itself (Linux from 32,768, RFC 6335 from 49,152): a port
/// that was free would else be taken by any socket of the machine before its node binds it.
const PORTS: Range<u32> = 10_240..32_768;
/// Ports looked at before there is said to be none.
const TRIES_MAX: u32 = 1_024;
/// Apart by more than one process asks for, so that processes side by side begin elsewhere.
const PER_PROCESS: u32 = 509;

/// Addresses this process has been given.
static GIVEN: AtomicU32 = AtomicU32::new(0);

/// A loopback address nobody uses at this moment, for both a UDP and a TCP port. The process is not
/// given it again before all others.
///
/// # Errors
/// When there is none.
pub fn free_address() -> io::Result<SocketAddr> {
    let first = std::process::id().wrapping_mul(PER_PROCESS);
    let next = |_| first.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed));
    first_free((0..TRIES_MAX).map(next))
}

fn first_free(steps: impl Iterator<Item = u32>) -> io::Result<SocketAddr> {
    for step in steps {
        let port = PORTS.start + step % (PORTS.end - PORTS.start);
        let port = u16::try_from(port).map_err(io::Error::other)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return Ok(address);
        }
    }
    let why = format!("none of {TRIES_MAX} ports looked at in {PORTS:?} is free on loopback");
    Err(io::Error::new(io::ErrorKind::AddrInUse, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn an_address_is_given_once_and_is_none_the_system_gives_out() {
        let given: Vec<_> = (0..200).map(|_| free_address().unwrap()).collect();
        assert!(given.iter().all(|address| PORTS.contains(&u32::from(address.port()))));
        assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), given.len());
    }

    #[test]
    fn an_address_in_use_is_passed_over() {
        let steps = 20_000..20_100;
        let first = first_free(steps.clone()).unwrap();
        let udp = UdpSocket::bind(first).unwrap();
        let second = first_free(steps.clone()).unwrap();
        let tcp = TcpListener::bind(second).unwrap();
        let third = first_free(steps).unwrap();
        assert!(first != second && second != third && first != third);
        drop((udp, tcp));
    }
}
