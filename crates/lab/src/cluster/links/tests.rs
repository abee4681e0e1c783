use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::*;

/// Two members, and the listener of the second.
fn two() -> (Links, TcpListener) {
    let (a, b) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let links = Links::start(&[a.local_addr().unwrap(), b.local_addr().unwrap()]).unwrap();
    (links, b)
}

/// A connection that member 0 has dialled, and its other end.
fn connect(links: &Links, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let near = TcpStream::connect(links.address(0, 1).unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    for side in [&near, &far] {
        side.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        side.set_nodelay(true).unwrap();
    }
    (near, far)
}

fn read(from: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    from.read_exact(&mut bytes).unwrap();
    bytes
}

/// Whether nothing comes for a while.
fn silent(side: &mut TcpStream) -> bool {
    side.set_read_timeout(Some(Duration::from_millis(80))).unwrap();
    let outcome = side.read(&mut [0; 16]);
    side.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    matches!(outcome, Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

/// Waits until a cut has swallowed so many bytes from member 0 to member 1.
fn swallowed(links: &Links, bytes: u64) {
    let began = Instant::now();
    while links.dropped(0, 1).unwrap() < bytes {
        assert!(began.elapsed() < Duration::from_secs(120), "{} bytes", links.dropped(0, 1).unwrap());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether the connection is over: its end or a reset.
fn over(side: &mut TcpStream) -> bool {
    match side.read(&mut [0; 16]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn both_directions_at_once_and_the_end_of_one() {
    let (links, listener) = two();
    let (mut near, mut far) = connect(&links, &listener);
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7 % 251) as u8).collect();
    std::thread::scope(|scope| {
        for mut side in [near.try_clone().unwrap(), far.try_clone().unwrap()] {
            let bytes = &bytes;
            scope.spawn(move || side.write_all(bytes).unwrap());
        }
        for side in [&mut near, &mut far] {
            assert!(read(side, bytes.len()) == bytes);
        }
    });
    assert_eq!(links.passed(0, 1).unwrap(), bytes.len() as u64);
    // One has nothing more to say; the other still has.
    near.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(over(&mut far));
    far.write_all(b"last").unwrap();
    assert_eq!(read(&mut near, 4), b"last");
    drop(far);
    assert!(over(&mut near));
}

#[test]
fn a_delay_keeps_order_and_throughput() {
    let (links, listener) = two();
    let delay = Duration::from_millis(40);
    links.set_delay(0, 1, delay).unwrap();
    let (mut near, mut far) = connect(&links, &listener);
    let began = Instant::now();
    near.write_all(b"x").unwrap();
    read(&mut far, 1);
    assert!(began.elapsed() >= delay);
    // 20 MB in pieces: were each piece waited for, they would take 20 times the delay and more.
    let bytes: Vec<u8> = (0..20_000_000u32).map(|n| (n * 13 % 241) as u8).collect();
    std::thread::scope(|scope| {
        let (mut sender, sent) = (near.try_clone().unwrap(), &bytes);
        scope.spawn(move || sent.chunks(100_000).for_each(|part| sender.write_all(part).unwrap()));
        assert!(read(&mut far, bytes.len()) == bytes);
    });
    // A shorter delay does not let later bytes overtake earlier ones.
    near.write_all(b"first").unwrap();
    std::thread::sleep(Duration::from_millis(5));
    links.set_delay(0, 1, Duration::ZERO).unwrap();
    near.write_all(b"second").unwrap();
    assert_eq!(read(&mut far, 11), b"firstsecond");
}

#[test]
fn a_cut_way_swallows_and_the_other_way_goes_on() {
    let (links, listener) = two();
    let (mut near, mut far) = connect(&links, &listener);
    let (mut idle, mut idle_far) = connect(&links, &listener);
    links.cut(0, 1).unwrap();
    near.write_all(b"lost").unwrap();
    swallowed(&links, 4);
    assert!(silent(&mut far));
    far.write_all(b"heard").unwrap();
    assert_eq!(read(&mut near, 5), b"heard");
    links.heal(0, 1).unwrap();
    // A stream with a hole in it ends; one that has lost nothing goes on.
    assert!(over(&mut far) && over(&mut near));
    idle.write_all(b"still").unwrap();
    assert_eq!(read(&mut idle_far, 5), b"still");
}

#[test]
fn what_is_under_way_when_a_way_is_cut_is_lost() {
    let (links, listener) = two();
    let (mut near, mut far) = connect(&links, &listener);
    // So long that the cut comes before it is over, however slow this machine is.
    links.set_delay(0, 1, Duration::from_secs(60)).unwrap();
    near.write_all(b"too late").unwrap();
    std::thread::sleep(Duration::from_millis(20));
    links.cut(0, 1).unwrap();
    swallowed(&links, 8);
    assert!(silent(&mut far));
    links.heal(0, 1).unwrap();
    assert!(over(&mut far));
}

#[test]
fn nobody_hears_of_an_end_behind_a_cut() {
    let (links, listener) = two();
    let (near, mut far) = connect(&links, &listener);
    links.set_around(&[0], Cut::Silent).unwrap();
    drop(near);
    assert!(silent(&mut far));
    links.heal_all();
    assert!(over(&mut far));
}

#[test]
fn a_new_connection_makes_no_progress_until_the_cut_is_healed() {
    let (links, listener) = two();
    listener.set_nonblocking(true).unwrap();
    links.cut(1, 0).unwrap();
    // Which way was cut does not matter: a connection needs both.
    let mut patient = TcpStream::connect(links.address(0, 1).unwrap()).unwrap();
    let mut eager = TcpStream::connect(links.address(0, 1).unwrap()).unwrap();
    eager.write_all(b"anybody?").unwrap();
    swallowed(&links, 8);
    assert!(listener.accept().is_err());
    links.heal(1, 0).unwrap();
    listener.set_nonblocking(false).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    patient.write_all(b"at last").unwrap();
    far.set_nonblocking(false).unwrap();
    assert_eq!(read(&mut far, 7), b"at last");
    assert!(over(&mut eager));
}

#[test]
fn a_refusing_way_closes_what_is_there_and_what_comes() {
    let (links, listener) = two();
    let (mut near, mut far) = connect(&links, &listener);
    links.set(0, 1, Cut::Refused).unwrap();
    assert!(over(&mut near) && over(&mut far));
    let mut refused = TcpStream::connect(links.address(0, 1).unwrap()).unwrap();
    assert!(over(&mut refused));
    links.heal_all();
    connect(&links, &listener);
}

#[test]
fn a_member_that_does_not_listen_refuses_through_the_link_too() {
    let (links, listener) = two();
    drop(listener);
    let mut near = TcpStream::connect(links.address(0, 1).unwrap()).unwrap();
    assert!(over(&mut near));
}

#[test]
fn a_split_cuts_between_the_sides_only() {
    let members: Vec<SocketAddr> = (1..=4).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
    let links = Links::start(&members).unwrap();
    links.set_around(&[0, 2], Cut::Silent).unwrap();
    for (from, to) in (0..4).flat_map(|a| (0..4).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        let expected = if from % 2 == to % 2 { Cut::Open } else { Cut::Silent };
        assert_eq!(links.get(from, to).unwrap(), expected, "{from} to {to}");
    }
    assert!(links.cut(1, 1).is_err() && links.cut(0, 4).is_err());
    let ports: std::collections::BTreeSet<_> = links.ports.iter().filter(|port| **port != 0).collect();
    assert_eq!(ports.len(), 12);
    let expected: Vec<String> =
        [1, 2, 3].map(|to| format!("127.0.0.1:{}={}", to + 1, links.address(0, to).unwrap())).to_vec();
    assert_eq!(links.peer_addresses(0), expected.join(","));
}
