use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_errors::{Code, Result};
use sheaf_meter::{Meter, Process};

use super::*;

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern, Flags::default()).unwrap()
}

fn code<T: fmt::Debug>(result: Result<T>) -> i32 {
    result.expect_err("it is refused").code().0
}

#[test]
fn finds_what_there_is() {
    let r = regex("b(c)?(d)");
    assert!(r.is_match("abcd").unwrap());
    assert!(!r.is_match("abc").unwrap());
    assert_eq!(r.find_at("bd bcd", 1).unwrap(), Some((3, 6)));
    let groups = r.captures_at("abd", 0).unwrap().unwrap();
    assert_eq!(
        (groups.len(), groups.get(0), groups.get(1), groups.get(2)),
        (3, Some((1, 3)), None, Some((2, 3)))
    );
    let flags = Flags { caseless: true, multi_line: true, dot_all: true, extended: true };
    assert!(Regex::new("^ B . c # d", flags).unwrap().is_match("a\nb\nC").unwrap());
    assert!(regex("^ä{2}$").is_match("ää").unwrap());
    let many = "(a)".repeat(100);
    assert_eq!(regex(&many).captures_at(&"a".repeat(100), 0).unwrap().unwrap().get(100), Some((99, 100)));
}

#[test]
fn says_what_is_wrong_with_a_pattern() {
    let Err(CompileError::Invalid(error)) = Regex::new("a(b", Flags::default()) else { panic!("it is none") };
    assert_eq!(error.to_string(), "PCRE2: error compiling pattern at offset 3: missing closing parenthesis");
    assert_eq!(error.reason(), "missing closing parenthesis");
    assert!(Regex::new("\\C", Flags::default()).is_err());
}

/// Each of these was "no match" from a few thousand characters on.
#[test]
fn long_texts_are_decided() {
    for n in [500, 1000, 2000, 3000, 10_000, 100_000] {
        assert!(regex("^(a|b)*$").is_match(&"a".repeat(n)).unwrap(), "letters {n}");
        assert!(regex(r"^(\w+\s?)*$").is_match(&"abc ".repeat(n / 4)).unwrap(), "words {n}");
        assert!(regex("^([^,]*,)*[^,]*$").is_match(&"ab,".repeat(n / 3)).unwrap(), "fields {n}");
        assert!(regex(r"(.|\n)*<script").is_match(&("x".repeat(n) + "<script")).unwrap(), "script {n}");
        let json = format!("{{{}}}", "\"a\":\"b\",".repeat(n / 8));
        assert!(regex(r#"^\{("[^"]*":"[^"]*",?)*\}$"#).is_match(&json).unwrap(), "pairs {n}");
        assert!(!regex("^(a|b)*$").is_match(&("a".repeat(n) + "c")).unwrap(), "other letters {n}");
    }
}

/// With callouts they are too long for PCRE2, so that a match in a long text was refused.
#[test]
fn long_patterns_are_found_in_long_texts() {
    for n in [9000, 16_384] {
        let letters = "a".repeat(n);
        let pattern = regex(&letters);
        assert_eq!(pattern.find_at(&format!("bb{letters}bb"), 1).unwrap(), Some((2, n + 2)), "{n} letters");
        assert!(!pattern.is_match(&format!("{}b", &letters[1..])).unwrap(), "one of {n} letters lacks");
    }
    // What takes many steps is refused as ever.
    let hard = format!("^(a+)+{}$", "b?".repeat(5000));
    assert_eq!(code(regex(&hard).is_match(&format!("{}c", "a".repeat(3000)))), 51156);
}

#[test]
fn what_cannot_be_decided_is_an_error() {
    // Without a meter nothing but PCRE2's own limit ends it.
    for n in [40, 3000] {
        assert_eq!(code(regex("^(a+)+$").is_match(&("a".repeat(n) + "b"))), 51156);
    }
    // A million groups need more memory than a match gets.
    assert_eq!(code(regex("^(a|b)*$").is_match(&"a".repeat(3_000_000))), 51156);
}

/// Quadratic and worse, within PCRE2's limits for each starting point: minutes, if nobody looked at the clock.
#[test]
fn a_match_ends_when_its_time_is_over() {
    for (pattern, text) in [
        ("x*[yz]", "x".repeat(4_000_000)),
        ("x*x*[yz]", "x".repeat(20_000)),
        (r"(x+)*[^x]y", "x".repeat(1800)),
        (r"(?=(x+))(\1|x)*y", "x".repeat(100_000)),
    ] {
        let meter = Meter::background(&Process::share_of(4 << 30));
        let _entered = sheaf_meter::enter(meter.clone());
        meter.begin(Some(Instant::now() + Duration::from_millis(50)));
        let began = Instant::now();
        let ended = regex(pattern).is_match(&text);
        assert!(began.elapsed() < Duration::from_secs(10), "{pattern} took {:?}", began.elapsed());
        if let Err(error) = ended {
            assert!(matches!(error.code(), Code::MAX_TIME_MS_EXPIRED | Code(51156)), "{pattern}: {error:?}");
        }
    }
}

#[test]
fn memory_of_interpreted_matches_is_the_operations() {
    let process = Process::new(16 << 20, 4 << 20);
    let _entered = sheaf_meter::enter(Meter::background(&process));
    let text = "a".repeat(100_000);
    assert_eq!(code(regex("^(a|b)*$").is_match(&text)), Code::EXCEEDED_MEMORY_LIMIT.0);
    assert!(regex("^a*$").is_match(&text).unwrap());
    assert_eq!(process.used(), 0);
}

#[test]
fn threads_share_a_pattern() {
    let shared = Arc::new(regex("(a|b)*c"));
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let shared = shared.clone();
            std::thread::spawn(move || {
                let text = "ab".repeat(400 + n * 1000);
                assert!(!shared.is_match(&text).unwrap());
                assert!(shared.is_match(&(text + "c")).unwrap());
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A filter, an expression or a validator may have hundreds of thousands.
#[test]
fn compiled_patterns_are_the_operations() {
    let process = Process::new(16 << 20, 1 << 20);
    let meter = Meter::background(&process);
    let entered = sheaf_meter::enter(meter.clone());
    let (mut kept, mut ended) = (Vec::new(), None);
    while ended.is_none() && kept.len() < 100_000 {
        match Regex::new(&format!("^{}a*b", kept.len()), Flags::default()) {
            Ok(compiled) => kept.push(compiled),
            Err(error) => ended = Some(error.into_error(|what| panic!("{what}"))),
        }
    }
    assert_eq!(ended.map(|error| error.code()), Some(Code::EXCEEDED_MEMORY_LIMIT), "{}", kept.len());
    assert!(kept.len() >= 100, "{}", kept.len());
    kept.truncate(kept.len() / 2);
    let used = process.used();
    assert!(used > kept.len() as u64 * 200, "{used}");
    // A clone is the same program.
    let clones = kept.clone();
    assert_eq!(process.used(), used);
    // What another operation makes it compile is paid by the one that keeps it.
    let account = meter.account();
    meter.begin(None);
    assert!(!kept[0].is_match(&"a".repeat(10_000)).unwrap());
    assert!(process.used() > used);
    assert_eq!(account.used(), process.used());
    drop((kept, entered));
    assert_eq!(account.used(), process.used());
    drop(clones);
    assert_eq!(process.used(), 0);
}

#[test]
fn to_compile_very_many_patterns_ends_when_its_time_is_over() {
    let meter = Meter::background(&Process::share_of(64 << 30));
    let _entered = sheaf_meter::enter(meter.clone());
    meter.begin(Some(Instant::now()));
    let ended = (0..10).find_map(|n| Regex::new(&format!("^{n}a*b"), Flags::default()).err());
    let code = ended.map(|error| error.into_error(|what| panic!("{what}")).code());
    assert_eq!(code, Some(Code::MAX_TIME_MS_EXPIRED));
}
