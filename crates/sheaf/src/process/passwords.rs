//! Passwords of the command line, which every account of the machine can read for as long as the process runs: the process begins anew
//! without them, and has them from its environment, which only its own account can read.

use std::io::Error;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Flags whose values are shown to nobody.
const PASSWORDS: [&str; 2] = ["--tlsCertificateKeyFilePassword", "--tlsClusterPassword"];

/// What is shown in their place.
const SHOWN: &str = "<password>";

/// The passwords themselves, in the order of the flags, stand behind this name with a number.
const KEPT: &str = "SHEAF_PASSWORD_";

/// The command line with other values of the flags that have passwords.
fn with_passwords(argv: &[String], mut each: impl FnMut(&str) -> String) -> Vec<String> {
    let mut is_next = false;
    let show = |word: &String| {
        let named = word.split_once('=').filter(|(name, _)| PASSWORDS.contains(name));
        match (std::mem::replace(&mut is_next, PASSWORDS.contains(&word.as_str())), named) {
            (true, _) => each(word),
            (false, Some((name, password))) => format!("{name}={}", each(password)),
            (false, None) => word.clone(),
        }
    };
    argv.iter().map(show).collect()
}

/// The command line without passwords.
pub fn without_passwords(argv: &[String]) -> Vec<String> {
    with_passwords(argv, |_| SHOWN.to_owned())
}

/// The command line as it was given, with the passwords that [`hide`] has kept.
pub fn revealed(argv: &[String], kept: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut at = 0;
    with_passwords(argv, |word| {
        let password = if word == SHOWN { kept(&format!("{KEPT}{at}")) } else { None };
        at += 1;
        password.unwrap_or_else(|| word.to_owned())
    })
}

/// Begins this program anew, if somebody could read a password of its command line: same process id, same files.
///
/// Gives why that was not possible.
pub fn hide(argv: &[String]) -> Option<Error> {
    let mut passwords = Vec::new();
    let shown = with_passwords(argv, |password| {
        passwords.push((format!("{KEPT}{}", passwords.len()), password.to_owned()));
        SHOWN.to_owned()
    });
    if passwords.iter().all(|(_, password)| password == SHOWN) {
        return None;
    }
    let mut program = Command::new("/proc/self/exe");
    let (name, rest) = shown.split_first()?;
    Some(program.arg0(name).args(rest).envs(passwords).exec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let argv =
            ["sheaf", "--tlsClusterPassword", "one", "--tlsCertificateKeyFilePassword=two", "--port", "1"]
                .map(str::to_owned);
        let shown = without_passwords(&argv);
        let expected = [
            "sheaf",
            "--tlsClusterPassword",
            "<password>",
            "--tlsCertificateKeyFilePassword=<password>",
            "--port",
            "1",
        ];
        assert_eq!(shown, expected);
        let kept = |name: &str| match name {
            "SHEAF_PASSWORD_0" => Some("one".to_owned()),
            "SHEAF_PASSWORD_1" => Some("two".to_owned()),
            _ => None,
        };
        assert_eq!(revealed(&shown, kept), argv);
        // Where nothing was hidden, nothing is looked up.
        assert_eq!(revealed(&argv, kept), argv);
        assert!(hide(&shown).is_none());
    }
}
