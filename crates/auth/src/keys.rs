//! The keys by which the members of a deployment know each other, as a key file holds them.

use std::fmt;
use std::sync::Arc;

/// How many characters a key may have.
const LENGTH: std::ops::RangeInclusive<usize> = 6..=1024;

/// More than one key is there while keys are changed: an old one and a new one.
pub const MOST_KEYS: usize = 16;

/// The user as whom members log in to each other, and its database.
pub const MEMBER_USER: (&str, &str) = ("__system", "local");

/// The keys of a deployment: the first one is used, the others are taken, too.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys(Arc<[String]>);

/// Keys are shown to nobody.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.0.len())
    }
}

impl Keys {
    /// Reads a key file's text: one key, over as many lines as it likes, or a YAML list of keys. `path` is for messages.
    ///
    /// Errors: a text for the user, without the keys.
    pub fn parse(text: &str, path: &str) -> Result<Keys, String> {
        // Some editors begin a file with a mark of its byte order; a comment is behind white space.
        let text = text.trim_start_matches('\u{feff}');
        let without_comment = |line: &str| {
            let mark = line.find('#').filter(|at| line[..*at].ends_with([' ', '\t']) || *at == 0);
            line[..mark.unwrap_or(line.len())].trim().to_owned()
        };
        let lines = text.lines().map(without_comment).filter(|line| !line.is_empty() && *line != "---");
        let mut lines: Vec<String> = lines.collect();
        let whole = lines.concat();
        if let Some(list) = whole.strip_prefix('[').and_then(|list| list.strip_suffix(']')) {
            lines = list.split(',').map(|key| format!("-{key}")).collect();
        }
        let mut keys: Vec<String> = Vec::new();
        for line in &lines {
            // No key has a dash.
            let part = match line.strip_prefix('-') {
                Some(rest) => {
                    keys.push(String::new());
                    rest
                }
                None => line.as_str(),
            };
            if keys.is_empty() {
                keys.push(String::new());
            }
            let part = part.trim();
            let quoted = ['"', '\''].iter().find_map(|q| part.strip_prefix(*q)?.strip_suffix(*q));
            let part = quoted.unwrap_or(part).chars().filter(|c| !c.is_whitespace());
            keys.last_mut().into_iter().for_each(|key| key.extend(part.clone()));
        }
        if keys.is_empty() {
            return Err(format!("security key in {path} has length 0, must be between 6 and 1024 chars"));
        }
        if keys.len() > MOST_KEYS {
            return Err(format!("{path} has {} security keys, {MOST_KEYS} at most can be used", keys.len()));
        }
        for key in &keys {
            if let Some(bad) = key.chars().find(|c| !(c.is_ascii_alphanumeric() || "+/=".contains(*c))) {
                return Err(format!(
                    "invalid char in key file {path}: {bad} (a key is base64, several are a YAML list: - KEY)"
                ));
            }
            if !LENGTH.contains(&key.len()) {
                return Err(format!(
                    "security key in {path} has length {}, must be between 6 and 1024 chars",
                    key.len()
                ));
            }
        }
        Ok(Keys(keys.into()))
    }

    /// All keys, that of this process first.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<String>, String> {
        Keys::parse(text, "f").map(|keys| keys.iter().map(str::to_owned).collect())
    }

    #[test]
    fn one_key_or_a_list() {
        assert_eq!(parsed("abc\n def+/=\n").unwrap(), ["abcdef+/="]);
        assert_eq!(
            parsed("- firstkey\n- \"second key\"\n- third\n  key\n").unwrap(),
            ["firstkey", "secondkey", "thirdkey"]
        );
        assert_eq!(parsed("---\n# old\n- firstkey\n").unwrap(), ["firstkey"]);
        assert_eq!(parsed("123456").unwrap(), ["123456"]);
        assert_eq!(parsed("\u{feff}- firstkey # new\n  # old\n- second\n").unwrap(), ["firstkey", "second"]);
        assert_eq!(parsed("[firstkey,\n 'second key']\n").unwrap(), ["firstkey", "secondkey"]);
    }

    #[test]
    fn what_is_no_key_is_refused() {
        assert!(parsed("").unwrap_err().contains("has length 0"));
        assert!(parsed("abcde").unwrap_err().contains("has length 5"));
        assert!(parsed(&"a".repeat(1025)).unwrap_err().contains("has length 1025"));
        assert!(parsed("abc_defg").unwrap_err().starts_with("invalid char in key file f: _"));
        assert!(parsed("abc#defg").unwrap_err().starts_with("invalid char in key file f: #"));
        assert!(parsed("- abcdefg\n-").unwrap_err().contains("has length 0"));
        assert!(!format!("{:?}", Keys::parse("secret", "f").unwrap()).contains("secret"));
    }
}
