//! A script's form: commands, `----`, what came of them, an empty line.

use std::path::Path;

use super::set::Set;

/// Plays a script. Returns how what came differs from what the file says, or puts it into the file.
pub fn play(path: &Path, rewrite: bool) -> Option<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut set = Set::default();
    let mut found = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        found.push_str(line);
        found.push('\n');
        if line == "----" {
            // What was written here is passed over, and what is true now put in its place.
            lines.by_ref().take_while(|line| !line.is_empty()).for_each(drop);
            let out = set.take_output();
            found.push_str(if out.is_empty() { "nothing\n" } else { &out });
            found.push('\n');
        } else if !line.is_empty() && !line.starts_with('#') {
            set.command(line);
        }
    }
    let found = format!("{}\n", found.trim_end());
    if rewrite {
        std::fs::write(path, &found).unwrap();
    }
    if found == text || rewrite {
        return None;
    }
    let (line, (is, was)) =
        found.lines().zip(text.lines()).enumerate().find(|(_, (is, was))| is != was).unwrap_or((0, ("", "")));
    let name = path.file_name().unwrap().to_string_lossy();
    Some(format!("{name}, line {}: expected\n  {was}\nand found\n  {is}\nof\n{found}", line + 1))
}
