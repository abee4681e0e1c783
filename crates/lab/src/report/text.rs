//! Aligned text for terminals.

/// Where a column's texts stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Names.
    Left,
    /// Figures.
    Right,
}

/// A table of text, printed as wide as it must be, or one field a line where the terminal is narrower.
#[derive(Default)]
pub struct Grid {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    /// A table with these columns; the first names the row.
    pub fn new(columns: Vec<(String, Align)>) -> Grid {
        Grid { columns, rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub fn row(&mut self, mut cells: Vec<String>) {
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// Whether no row was added.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether it can be printed with a line for each row.
    pub fn fits(&self, width: usize) -> bool {
        let widths = self.widths();
        widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1) <= width
    }

    /// The text; each line ends with a newline.
    pub fn print(&self, width: usize) -> String {
        if self.fits(width) {
            return self.aligned(&self.widths());
        }
        match self.parts(width) {
            Some(parts) if self.rows.len() > 1 => {
                parts.iter().map(|part| part.aligned(&part.widths())).collect::<Vec<_>>().join("\n")
            }
            _ => self.stacked(),
        }
    }

    /// The same rows in several tables with some of the columns each; `None` when a column alone is too wide.
    fn parts(&self, width: usize) -> Option<Vec<Grid>> {
        let widths = self.widths();
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut free = 0;
        for column in 1..self.columns.len() {
            let needed = widths[column] + 2;
            if needed > free {
                groups.push(vec![0]);
                free = width.checked_sub(widths[0])?;
            }
            free = free.checked_sub(needed)?;
            groups.last_mut()?.push(column);
        }
        let part = |group: &Vec<usize>| Grid {
            columns: group.iter().map(|i| self.columns[*i].clone()).collect(),
            rows: self.rows.iter().map(|row| group.iter().map(|i| row[*i].clone()).collect()).collect(),
        };
        Some(groups.iter().map(part).collect())
    }

    fn widths(&self) -> Vec<usize> {
        let cell_width = |i: usize| self.rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
        self.columns
            .iter()
            .enumerate()
            .map(|(i, (name, _))| name.chars().count().max(cell_width(i)))
            .collect()
    }

    fn aligned(&self, widths: &[usize]) -> String {
        let mut text = String::new();
        let header: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        self.line(&mut text, &header, widths);
        let rule: Vec<String> = widths.iter().map(|w| "-".repeat(*w)).collect();
        self.line(&mut text, &rule, widths);
        for row in &self.rows {
            self.line(&mut text, row, widths);
        }
        text
    }

    fn line(&self, text: &mut String, cells: &[String], widths: &[usize]) {
        let mut line = String::new();
        for ((cell, width), (_, align)) in cells.iter().zip(widths).zip(&self.columns) {
            let space = " ".repeat(width - cell.chars().count());
            match align {
                Align::Left => line.extend([cell.as_str(), &space, "  "]),
                Align::Right => line.extend([space.as_str(), cell, "  "]),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }

    /// One field a line, under the row's first field.
    fn stacked(&self) -> String {
        let name_width = self.columns.iter().skip(1).map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for row in &self.rows {
            text.push_str(&row[0]);
            text.push('\n');
            for (cell, (name, _)) in row.iter().zip(&self.columns).skip(1).filter(|(c, _)| !c.is_empty()) {
                let space = " ".repeat(name_width - name.chars().count());
                text.push_str(&format!("  {name}{space}  {cell}\n"));
            }
        }
        text
    }
}

/// Columns of the terminal behind standard output; `COLUMNS`, or 120, where there is none.
pub fn terminal_width() -> usize {
    rustix::termios::tcgetwinsize(std::io::stdout())
        .ok()
        .map(|size| usize::from(size.ws_col))
        .or_else(|| std::env::var("COLUMNS").ok()?.parse().ok())
        .filter(|columns| *columns > 0)
        .unwrap_or(120)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_and_narrow() {
        let mut grid = Grid::new(vec![("row".into(), Align::Left), ("MB/s".into(), Align::Right)]);
        grid.row(vec!["safe".into(), "1,234".into()]);
        grid.row(vec!["normal, µ".into(), "9".into()]);
        grid.row(vec!["empty".into()]);
        grid.columns.push(("MB/s read".into(), Align::Right));
        grid.rows.iter_mut().for_each(|row| row.push("7".into()));
        let parts = "row         MB/s\n---------  -----\nsafe       1,234\nnormal, µ      9\nempty\n\n\
                     row        MB/s read\n---------  ---------\nsafe               7\nnormal, µ          7\nempty              7\n";
        assert_eq!(grid.print(20), parts);
        grid.columns.pop();
        grid.rows.iter_mut().for_each(|row| row.truncate(2));
        let wide = "row         MB/s\n---------  -----\nsafe       1,234\nnormal, µ      9\nempty\n";
        assert_eq!(grid.print(16), wide);
        assert_eq!(grid.print(15), "safe\n  MB/s  1,234\nnormal, µ\n  MB/s  9\nempty\n");
    }
}
