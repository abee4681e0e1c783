//! Ports for servers that are about to be started.
//!
//! A server binds its port itself, some time after it was chosen, and a member that is down leaves its port alone for
//! seconds. The kernel gives ports of one range to outgoing connections and to whoever asks for any; so they are chosen
//! from below that range, where only somebody who names a port can take it.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use crate::error::{Error, Result};

/// Below are those of well-known services.
const FIRST: u16 = 10_000;
/// Of the first port that the kernel gives away, if it does not say.
const USUAL: u16 = 32_768;
/// What people use by default for servers that they start themselves.
const RESERVED: Range<u16> = 27_000..27_100;
/// Ports that are tried.
const TRIES: u32 = 1000;

/// So many different ports of the loopback interface that nobody listens on, held as long as the listeners live.
pub(crate) fn hold(count: usize) -> Result<Vec<TcpListener>> {
    let range = FIRST..first_of_the_kernel();
    let mut held = Vec::new();
    for _ in 0..TRIES {
        if held.len() == count {
            return Ok(held);
        }
        // With nothing left for us, one of the kernel's.
        let port = if range.len() < 1000 { 0 } else { rand::random_range(range.clone()) };
        if !RESERVED.contains(&port) {
            held.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
        }
    }
    Err(Error::failed(format!("there are no {count} free ports")))
}

/// The same, let go.
pub(crate) fn free(count: usize) -> Result<Vec<u16>> {
    let held = hold(count)?;
    held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

fn first_of_the_kernel() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(USUAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_free_different_and_not_the_kernels() {
        let held = hold(20).unwrap();
        let mut ports: Vec<u16> = held.iter().map(|l| l.local_addr().unwrap().port()).collect();
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, ports[7])).is_err(), "it is held");
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 20);
        if first_of_the_kernel() > FIRST + 1000 {
            assert!(ports.iter().all(|port| *port >= FIRST && *port < first_of_the_kernel()), "{ports:?}");
        }
        assert_eq!(free(3).unwrap().len(), 3);
    }
}
