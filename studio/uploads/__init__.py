"""Files that browsers send into the studio's folder, and the consent of the people who speak in them."""
