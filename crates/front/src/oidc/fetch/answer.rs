//! An answer by HTTP, as far as it has come.

/// The text of an answer of which these bytes have come; `None` while more has to come. With `ended` nothing more comes.
///
/// Errors: a text for the log.
pub fn body(answer: &[u8], ended: bool) -> Result<Option<String>, String> {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        return if ended { Err("the answer has no end of its header".to_owned()) } else { Ok(None) };
    };
    let (header, rest) = (String::from_utf8_lossy(&answer[..end]), &answer[end + 4..]);
    let mut lines = header.split("\r\n");
    let first = lines.next().unwrap_or_default();
    if !first.starts_with("HTTP/1.") || first.split(' ').nth(1) != Some("200") {
        return Err(format!("the answer is {first}"));
    }
    let fields: Vec<_> = lines.filter_map(|line| line.split_once(':')).collect();
    let field = |wanted: &str| {
        let mut found = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.next().map(|(_, value)| value.trim())
    };
    let whole = match (field("transfer-encoding"), field("content-length")) {
        (Some(coding), _) if coding.eq_ignore_ascii_case("chunked") => joined(rest)?,
        (Some(coding), _) => return Err(format!("the answer comes as {coding}, which was not asked for")),
        (None, Some(length)) => {
            let length: usize = length.parse().map_err(|_| "the answer's length is no number")?;
            rest.get(..length).map(<[u8]>::to_vec)
        }
        // Nobody says where it ends but its end.
        (None, None) => ended.then(|| rest.to_vec()),
    };
    match whole {
        Some(whole) => String::from_utf8(whole).map(Some).map_err(|_| "the answer is no text".to_owned()),
        None if ended => Err("the answer is cut".to_owned()),
        None => Ok(None),
    }
}

/// What comes in chunks, each behind its length; `None` while the last one, which is empty, has not come.
fn joined(mut rest: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let mut whole = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else { return Ok(None) };
        let line = std::str::from_utf8(&rest[..end]).unwrap_or_default();
        // Extensions follow a semicolon.
        let length = line.split(';').next().unwrap_or_default().trim();
        let length = usize::from_str_radix(length, 16).map_err(|_| "a chunk's length is no number")?;
        if length == 0 {
            return Ok(Some(whole));
        }
        rest = &rest[end + 2..];
        let Some(chunk) = rest.get(..length) else { return Ok(None) };
        whole.extend_from_slice(chunk);
        rest = match rest[length..].get(..2) {
            Some(b"\r\n") => &rest[length + 2..],
            Some(_) => return Err("a chunk is longer than it says".to_owned()),
            None => return Ok(None),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &[&str] = &[
        "HTTP/1.0 200 OK\r\nA: b\r\nContent-Length: 7\r\n\r\n{\"a\":1}",
        "HTTP/1.1 200 OK\r\ncontent-length:7\r\n\r\n{\"a\":1} and more",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"a\r\n4;x=y\r\n\":1}\r\n0\r\n\r\n",
    ];

    #[test]
    fn an_answer_ends_where_it_says() {
        for whole in WHOLE {
            assert_eq!(body(whole.as_bytes(), false).unwrap().as_deref(), Some("{\"a\":1}"), "{whole}");
        }
        let open = b"HTTP/1.0 200 OK\r\nA: b\r\n\r\n{}";
        assert_eq!(body(open, false), Ok(None));
        assert_eq!(body(open, true).unwrap().as_deref(), Some("{}"));
    }

    #[test]
    fn a_part_of_an_answer_is_none() {
        for whole in WHOLE {
            let end = whole.find(" and more").unwrap_or(whole.len()) - 1;
            // The end of the last chunk adds nothing.
            let end = end - if whole.contains("chunked") { 4 } else { 0 };
            for at in 0..=end {
                assert_eq!(body(&whole.as_bytes()[..at], false), Ok(None), "{whole} until {at}");
                assert!(body(&whole.as_bytes()[..at], true).is_err(), "{whole} until {at}");
            }
        }
    }

    #[test]
    fn what_was_not_asked_for_is_refused() {
        for bad in [
            "HTTP/1.1 404 Not Found\r\n\r\n{}",
            "HTTP/2 200 OK\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n{}",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n\u{e4}",
        ] {
            assert!(body(bad.as_bytes(), false).is_err(), "{bad}");
        }
    }
}
